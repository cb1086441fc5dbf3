// Some rows times one panel of weights, all sums in registers.
//
// Kinds of weights have one interface: `kRows`, the most rows at once; `kBytes` of a weight; `tile<count>`, which
// computes that many rows and hands them to `finish`.
#pragma once

#include <cstdint>

#include "matrix.h"

namespace remora {

constexpr int kAheadBytes = 4096;  // Memory answers late, and the hardware does not look beyond a page of its own.

inline void fetch_ahead(const void* weight, int bytes) {
  for (int line = 0; line < bytes; line += 64)
    _mm_prefetch(static_cast<const char*>(weight) + kAheadBytes + line, _MM_HINT_T1);
}

template <class Finish>
inline void finish_row(const Packed& weights, int row, int column, Lanes a, Lanes b, const Finish& finish) {
  const float* bias = weights.matrix.bias;
  if (bias != nullptr) {
    a = add(a, load(bias + column));
    b = add(b, load(bias + column + kLanes));
  }
  finish(row, column, a, b);
}

// Numbers by Numbers, summed in float32.
struct NumberTiles {
#if defined(__AVX512F__)
  static constexpr int kRows = 12;  // 24 sums, 2 weights and an input in 32 registers.
#else
  static constexpr int kRows = 3;  // 12 sums, a weight and 3 inputs in 16 registers.
#endif
  static constexpr int kBytes = sizeof(Number);

  template <int kCount, class Finish>
  static void tile(const Rows& x, int row, const Packed& weights, int index, const Finish& finish) {
    Lanes sums[kCount][2];
    for (int r = 0; r < kCount; ++r) sums[r][0] = sums[r][1] = splat(0.0f);
    const Number* weight = weights.panel<Number>(index);
    const Number* inputs[kCount];
    for (int r = 0; r < kCount; ++r) inputs[r] = x.numbers + static_cast<std::int64_t>(row + r) * weights.inputs;
    for (int k = 0; k < weights.inputs; k += kPair, weight += kPanel * kPair) {
      const Operand a = load_operand(weight), b = load_operand(weight + kLanes * kPair);
      fetch_ahead(weight, kBytes * kPanel * kPair);
#pragma GCC unroll 12
      for (int r = 0; r < kCount; ++r) {
        const Operand input = splat_operand(inputs[r] + k);
        sums[r][0] = dot(sums[r][0], a, input);
        sums[r][1] = dot(sums[r][1], b, input);
      }
    }
    for (int r = 0; r < kCount; ++r) finish_row(weights, row + r, index * kPanel, sums[r][0], sums[r][1], finish);
  }
};

}  // namespace remora
