// Tiles of int8 weights and rows, summed exactly in int32 and scaled at the end.
//
// Weights are unsigned, 128 too large: VNNI multiplies unsigned by signed bytes. What that makes too much is known of a
// row beforehand, its `start`. Up to 65536 inputs no sum can overflow.
#pragma once

#include <cstring>

#include "tiles.h"

namespace remora {

// Four inputs of a row, which a lane multiplies at once.
constexpr int kQuad = 4;

inline std::int32_t quad_at(const std::int8_t* inputs) {
  std::int32_t quad;
  std::memcpy(&quad, inputs, sizeof quad);
  return quad;
}

#if defined(__AVX512F__)

// The rest of a build runs where there is no VNNI, too.
#define REMORA_VNNI __attribute__((target("avx512vnni")))

// As the instruction has them: sums of __m512i, which are 64 bits wide for the compiler, it would move back and forth.
using Int32s = __v16si;

struct Int8Tiles {
  static constexpr int kRows = 12;  // As NumberTiles.
  static constexpr int kBytes = 1;

  template <int kCount, class Finish>
  REMORA_VNNI static void tile(const Rows& x, int row, const Packed& weights, int index, const Finish& finish) {
    Int32s sums[kCount][2];
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) sums[r][0] = sums[r][1] = (Int32s)_mm512_set1_epi32(x.scales[row + r].start);
    const std::uint8_t* weight = weights.panel<std::uint8_t>(index);
    const std::int8_t* inputs[kCount];
    for (int r = 0; r < kCount; ++r) inputs[r] = x.bytes + static_cast<std::int64_t>(row + r) * weights.inputs;
    for (int k = 0; k < weights.inputs; k += kQuad, weight += kPanel * kQuad) {
      const __m512i a = _mm512_load_si512(weight), b = _mm512_load_si512(weight + kLanes * kQuad);
      fetch_ahead(weight, kPanel * kQuad);
#pragma GCC unroll 12
      for (int r = 0; r < kCount; ++r) {
        const __m512i input = _mm512_set1_epi32(quad_at(inputs[r] + k));
        sums[r][0] = (Int32s)_mm512_dpbusd_epi32((__m512i)sums[r][0], a, input);
        sums[r][1] = (Int32s)_mm512_dpbusd_epi32((__m512i)sums[r][1], b, input);
      }
    }
    const int column = index * kPanel;
    const Lanes of_a = load(weights.matrix.scales + column), of_b = load(weights.matrix.scales + column + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < kCount; ++r) {
      const Lanes scale = splat(x.scales[row + r].scale);
      const Lanes a{_mm512_cvtepi32_ps((__m512i)sums[r][0])}, b{_mm512_cvtepi32_ps((__m512i)sums[r][1])};
      finish_row(weights, row + r, column, mul(a, mul(scale, of_a)), mul(b, mul(scale, of_b)), finish);
    }
  }
};

#else

// The nearest that AVX2 has adds two products up in int16: with both below 128 they cannot overflow, so it is the
// weights' absolute values by the inputs with the weights' signs.
struct Int8Tiles {
  static constexpr int kRows = 3;  // 12 sums; a weight, its absolute value, ones and a product in 16 registers.
  static constexpr int kBytes = 1;
  static constexpr int kParts = 4;  // Registers of a panel's outputs.

  template <int kCount, class Finish>
  static void tile(const Rows& x, int row, const Packed& weights, int index, const Finish& finish) {
    __m256i sums[kCount][kParts];
#pragma GCC unroll 3
    for (int r = 0; r < kCount; ++r)
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) sums[r][part] = _mm256_setzero_si256();
    const std::uint8_t* weight = weights.panel<std::uint8_t>(index);
    const std::int8_t* inputs[kCount];
    for (int r = 0; r < kCount; ++r) inputs[r] = x.bytes + static_cast<std::int64_t>(row + r) * weights.inputs;
    const __m256i ones = _mm256_set1_epi16(1), middle = _mm256_set1_epi8(-128);
    for (int k = 0; k < weights.inputs; k += kQuad, weight += kPanel * kQuad) {
      fetch_ahead(weight, kPanel * kQuad);
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) {
        const __m256i* at = reinterpret_cast<const __m256i*>(weight) + part;
        const __m256i signs = _mm256_xor_si256(_mm256_load_si256(at), middle), sizes = _mm256_abs_epi8(signs);
#pragma GCC unroll 3
        for (int r = 0; r < kCount; ++r) {
          const __m256i input = _mm256_sign_epi8(_mm256_set1_epi32(quad_at(inputs[r] + k)), signs);
          const __m256i products = _mm256_madd_epi16(_mm256_maddubs_epi16(sizes, input), ones);
          sums[r][part] = _mm256_add_epi32(sums[r][part], products);
        }
      }
    }
    const int column = index * kPanel;
    const Lanes of_a = load(weights.matrix.scales + column), of_b = load(weights.matrix.scales + column + kLanes);
#pragma GCC unroll 3
    for (int r = 0; r < kCount; ++r) {
      const Lanes scale = splat(x.scales[row + r].scale);
      const Lanes a{_mm256_cvtepi32_ps(sums[r][0]), _mm256_cvtepi32_ps(sums[r][1])};
      const Lanes b{_mm256_cvtepi32_ps(sums[r][2]), _mm256_cvtepi32_ps(sums[r][3])};
      finish_row(weights, row + r, column, mul(a, mul(scale, of_a)), mul(b, mul(scale, of_b)), finish);
    }
  }
};

#endif

}  // namespace remora
