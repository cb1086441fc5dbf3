#include "rows.h"

#include <cmath>
#include <cstring>

namespace remora {

namespace {

constexpr int kMaxHeadDim = 256;

float root_mean_square_inverse(const float* x, int size, float eps) {
  Lanes squares = splat(0.0f);
  for (int i = 0; i < size; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  return 1.0f / std::sqrt(sum(squares) / static_cast<float>(size) + eps);
}

// `x`, or its norm, in `room`, where there are weights for one.
const float* normed_head(const float* x, const float* weight, int size, float eps, float* room) {
  if (weight == nullptr) return x;
  const Lanes scale = splat(root_mean_square_inverse(x, size, eps));
  for (int i = 0; i < size; i += kLanes) store(room + i, mul(mul(load(x + i), scale), load(weight + i)));
  return room;
}

// The pair of component i is i + size / 2.
void rotate(const float* x, const float* cosines, const float* sines, int size, Number* to) {
  const int half = size / 2;
  for (int i = 0; i < half; i += kLanes) {
    const Lanes a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i);
    narrow(to + i, sub(mul(a, c), mul(b, s)));
    narrow(to + half + i, add(mul(b, c), mul(a, s)));
  }
}

// Into a K plane: [page_size / 16][head_dim / kPair][16][kPair].
void put_key(const Number* key, int size, Number* plane, int slot) {
  Number* to = plane + (slot / kLanes) * kLanes * size + slot % kLanes * kPair;
  for (int i = 0; i < size; i += kPair, to += kLanes * kPair) std::memcpy(to, key + i, sizeof(Number) * kPair);
}

// Into a V plane: [page_size / kPair][head_dim][kPair].
void put_value(const float* value, int size, Number* plane, int slot) {
  Number narrowed[kMaxHeadDim];
  for (int i = 0; i < size; i += kLanes) narrow(narrowed + i, load(value + i));
  Number* to = plane + slot / kPair * kPair * size + slot % kPair;
  for (int i = 0; i < size; ++i) to[i * kPair] = narrowed[i];
}

}  // namespace

void rms_norm(const float* x, const float* weight, int size, float eps, Number* to) {
  const Lanes scale = splat(root_mean_square_inverse(x, size, eps));
  for (int i = 0; i < size; i += kLanes) narrow(to + i, mul(mul(load(x + i), scale), load(weight + i)));
}

void rotation(const RemoraShape& shape, const float* inverse, std::int64_t position, float* cosines, float* sines) {
  for (int i = 0; i < shape.head_dim / 2; ++i) {
    const float angle = static_cast<float>(position) * inverse[i];
    cosines[i] = std::cos(angle) * shape.rope_factor;
    sines[i] = std::sin(angle) * shape.rope_factor;
  }
}

void place_token(const RemoraShape& shape, const RemoraLayer& weights, int layer, const float* projected,
                 const float* cosines, const float* sines, Number* queries, Number* kv, std::int64_t page, int slot) {
  const int size = shape.head_dim;
  Number key[kMaxHeadDim];
  float room[kMaxHeadDim];
  for (int head = 0; head < shape.heads; ++head) {
    const float* query = normed_head(projected + head * size, weights.q_norm, size, shape.norm_eps, room);
    rotate(query, cosines, sines, size, queries + head * size);
  }
  for (int head = 0; head < shape.kv_heads; ++head) {
    const float* from = projected + (shape.heads + head) * size;
    Number* planes = const_cast<Number*>(kv_of(shape, kv, layer, page, head));
    rotate(normed_head(from, weights.k_norm, size, shape.norm_eps, room), cosines, sines, size, key);
    put_key(key, size, planes, slot);
    put_value(from + shape.kv_heads * size, size, planes + shape.page_size * size, slot);
  }
}

}  // namespace remora
