// Sixteen floats at a time: one AVX-512 register, or two of AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace remora {

constexpr int kLanes = 16;

#if defined(__AVX512F__)

struct Lanes {
  __m512 all;
};

inline Lanes splat(float value) { return {_mm512_set1_ps(value)}; }
inline Lanes load(const float* from) { return {_mm512_loadu_ps(from)}; }
inline void store(float* to, Lanes a) { _mm512_storeu_ps(to, a.all); }
inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.all, b.all)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.all, b.all)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.all, b.all)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm512_div_ps(a.all, b.all)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.all, b.all)}; }
inline Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.all, b.all)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.all, b.all, c.all)}; }
inline Lanes round_nearest(Lanes a) { return {_mm512_roundscale_ps(a.all, 0)}; }
inline Lanes times_power_of_two(Lanes a, Lanes whole) { return {_mm512_scalef_ps(a.all, whole.all)}; }
inline void narrow_to_bytes(std::int8_t* to, Lanes whole) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(whole.all)));
}
inline float sum(Lanes a) { return _mm512_reduce_add_ps(a.all); }
inline float largest(Lanes a) { return _mm512_reduce_max_ps(a.all); }

// The first `count` lanes of `a`, the others of `other`. 0 <= count <= 16.
inline Lanes first(int count, Lanes a, Lanes other) {
  return {_mm512_mask_mov_ps(other.all, static_cast<__mmask16>((1u << count) - 1), a.all)};
}

#else

struct Lanes {
  __m256 low, high;
};

inline Lanes splat(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Lanes load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline void store(float* to, Lanes a) {
  _mm256_storeu_ps(to, a.low);
  _mm256_storeu_ps(to + 8, a.high);
}
inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Lanes sub(Lanes a, Lanes b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Lanes mul(Lanes a, Lanes b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Lanes div(Lanes a, Lanes b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Lanes min(Lanes a, Lanes b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline __m256 round_nearest(__m256 a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Lanes round_nearest(Lanes a) { return {round_nearest(a.low), round_nearest(a.high)}; }

// `whole` within what a normal float's exponent can say.
inline __m256 power_of_two(__m256 whole) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline Lanes times_power_of_two(Lanes a, Lanes whole) {
  return {_mm256_mul_ps(a.low, power_of_two(whole.low)), _mm256_mul_ps(a.high, power_of_two(whole.high))};
}
inline void narrow_to_bytes(std::int8_t* to, Lanes whole) {
  const __m256i by_halves = _mm256_packs_epi32(_mm256_cvtps_epi32(whole.low), _mm256_cvtps_epi32(whole.high));
  const __m256i words = _mm256_permute4x64_epi64(by_halves, 0xD8);
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
}
inline float sum(Lanes a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float largest(Lanes a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

// The first `count` lanes of `a`, the others of `other`. 0 <= count <= 16.
inline Lanes first(int count, Lanes a, Lanes other) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), index));
  const __m256 high = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), index));
  return {_mm256_blendv_ps(other.low, a.low, low), _mm256_blendv_ps(other.high, a.high, high)};
}

#endif

// e^x to about 2e-7 of it; below e^-87 it is e^-87. NaN stays NaN.
inline Lanes exponential(Lanes x) {
  // max and min answer their second operand where one is NaN.
  x = min(splat(88.0f), max(splat(-87.0f), x));
  const Lanes scaled = mul(x, splat(1.44269504f));
  const Lanes whole = round_nearest(scaled);
  const Lanes rest = sub(scaled, whole);
  Lanes value = splat(1.5403530e-4f);
  value = fma(value, rest, splat(1.3333558e-3f));
  value = fma(value, rest, splat(9.6181291e-3f));
  value = fma(value, rest, splat(5.5504109e-2f));
  value = fma(value, rest, splat(2.4022651e-1f));
  value = fma(value, rest, splat(6.9314718e-1f));
  value = fma(value, rest, splat(1.0f));
  return times_power_of_two(value, whole);
}

}  // namespace remora
