#include "quantise.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "hadamard.h"

namespace remora {

namespace {

constexpr int kBlock = 64;
constexpr float kMost = 127.0f;
constexpr float kNothing = 1e-30f;  // Its inverse is finite, and 127 times that.

thread_local std::vector<float> rotated;

// What all blocks so far have in common: the largest of their numbers, and NaN if one is not finite (a maximum forgets
// NaN; NaN and infinity times 0 are NaN).
struct Seen {
  Lanes peaks = splat(0.0f), poison = splat(0.0f);
};

template <int kCount>
inline void rotate(const Number* x, float* to, Seen& seen) {
  Lanes block[kCount];
  for (int i = 0; i < kCount; ++i) block[i] = widen(x + i * kLanes);
  transform(block);
  const Lanes unit = splat(1.0f / std::sqrt(static_cast<float>(kCount * kLanes))), zero = splat(0.0f);
  for (int i = 0; i < kCount; ++i) {
    const Lanes a = mul(block[i], unit);
    store(to + i * kLanes, a);
    seen.peaks = max(seen.peaks, max(a, sub(zero, a)));
    seen.poison = fma(a, zero, seen.poison);
  }
}

Seen rotate_row(const Number* x, int size, float* to) {
  Seen seen;
  int i = 0;
  for (; i + kBlock <= size; i += kBlock) rotate<kBlock / kLanes>(x + i, to + i, seen);
  if (i + 2 * kLanes <= size) {
    rotate<2>(x + i, to + i, seen);
    i += 2 * kLanes;
  }
  if (i < size) rotate<1>(x + i, to + i, seen);
  return seen;
}

}  // namespace

void quantise(const Number* x, int size, std::int8_t* to, RowScale* scale) {
  if (rotated.size() < static_cast<std::size_t>(size)) rotated.resize(size);
  float* numbers = rotated.data();
  const Seen seen = rotate_row(x, size, numbers);
  const float peak = largest(seen.peaks), poison = sum(seen.poison);
  if (std::isnan(poison)) {
    std::fill(to, to + size, 0);
    *scale = {poison, 0};
    return;
  }
  const Lanes inverse = splat(peak > kNothing ? kMost / peak : 0.0f);
  Lanes total = splat(0.0f);  // Of whole numbers, exact.
  for (int i = 0; i < size; i += kLanes) {
    const Lanes whole = round_nearest(mul(load(numbers + i), inverse));
    total = add(total, whole);
    narrow_to_bytes(to + i, whole);
  }
  *scale = {peak > kNothing ? peak / kMost : 0.0f, -128 * static_cast<std::int32_t>(sum(total))};
}

}  // namespace remora
