// What weights, activations and K/V are stored as, and how a product of them is summed.
//
// A lane of an operand holds kPair numbers that follow each other along the summed dimension: two bfloat16, which one
// instruction multiplies and adds in float32, or one float32.
#pragma once

#include <cstdint>
#include <cstring>

#include "lanes.h"

namespace remora {

#if defined(REMORA_BFLOAT16)

using Number = std::uint16_t;
constexpr int kPair = 2;
using Operand = __m512bh;

inline Operand load_operand(const Number* from) { return (__m512bh)_mm512_load_si512(from); }

// Of each lane only the first number: the second may be anything, NaN too.
inline Operand load_first_of_pairs(const Number* from) {
  return (__m512bh)_mm512_and_si512(_mm512_load_si512(from), _mm512_set1_epi32(0xffff));
}

inline Operand splat_operand(const Number* from) {
  std::int32_t pair;
  std::memcpy(&pair, from, sizeof pair);
  return (__m512bh)_mm512_set1_epi32(pair);
}

inline Lanes dot(Lanes sums, Operand a, Operand b) { return {_mm512_dpbf16_ps(sums.all, a, b)}; }

inline Lanes widen(const Number* from) {
  const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
}

inline void narrow(Number* to, Lanes a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(a.all));
}

#else

using Number = float;
constexpr int kPair = 1;
using Operand = Lanes;

inline Operand load_operand(const Number* from) { return load(from); }
inline Operand load_first_of_pairs(const Number* from) { return load(from); }
inline Operand splat_operand(const Number* from) { return splat(*from); }
inline Lanes dot(Lanes sums, Operand a, Operand b) { return fma(a, b, sums); }
inline Lanes widen(const Number* from) { return load(from); }
inline void narrow(Number* to, Lanes a) { store(to, a); }

#endif

}  // namespace remora
