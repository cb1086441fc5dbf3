// Sums and differences of all of a row's neighbours: spreads what is large in few places over all of a block.
#pragma once

#include "lanes.h"

namespace remora {

#if defined(__AVX512F__)

// Each lane and the one that differs from it in one bit become their sum and their difference, for each of four bits.
inline Lanes mix_lanes(Lanes a) {
  const auto mix = [](__m512 each, __m512 other, unsigned odd) {
    return _mm512_mask_sub_ps(_mm512_add_ps(each, other), static_cast<__mmask16>(odd), other, each);
  };
  __m512 x = a.all;
  x = mix(x, _mm512_permute_ps(x, 0xB1), 0xAAAA);
  x = mix(x, _mm512_permute_ps(x, 0x4E), 0xCCCC);
  x = mix(x, _mm512_shuffle_f32x4(x, x, 0xB1), 0xF0F0);
  x = mix(x, _mm512_shuffle_f32x4(x, x, 0x4E), 0xFF00);
  return {x};
}

#else

inline Lanes mix_lanes(Lanes a) {
  const auto mix = [](__m256 x) {
    __m256 other = _mm256_permute_ps(x, 0xB1);
    x = _mm256_blend_ps(_mm256_add_ps(x, other), _mm256_sub_ps(other, x), 0xAA);
    other = _mm256_permute_ps(x, 0x4E);
    x = _mm256_blend_ps(_mm256_add_ps(x, other), _mm256_sub_ps(other, x), 0xCC);
    other = _mm256_permute2f128_ps(x, x, 1);
    return _mm256_blend_ps(_mm256_add_ps(x, other), _mm256_sub_ps(other, x), 0xF0);
  };
  const __m256 low = mix(a.low), high = mix(a.high);
  return {_mm256_add_ps(low, high), _mm256_sub_ps(low, high)};
}

#endif

// The Walsh-Hadamard transform of `kCount` times 16 numbers, a power of two, in place; not normalised.
template <int kCount>
inline void transform(Lanes (&x)[kCount]) {
  for (Lanes& each : x) each = mix_lanes(each);
  for (int step = 1; step < kCount; step *= 2)
    for (int begin = 0; begin < kCount; begin += 2 * step)
      for (int i = begin; i < begin + step; ++i) {
        const Lanes a = x[i], b = x[i + step];
        x[i] = add(a, b);
        x[i + step] = sub(a, b);
      }
}

}  // namespace remora
