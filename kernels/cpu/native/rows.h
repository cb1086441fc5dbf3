// What is done to each token by itself: norms, rotation, and putting K and V into the cache.
#pragma once

#include "model.h"
#include "number.h"

namespace remora {

// to [size] = x / root mean square of x, times weight. `size` is a multiple of 16.
void rms_norm(const float* x, const float* weight, int size, float eps, Number* to);

// cosines and sines [head_dim / 2] at a position.
void rotation(const RemoraShape& shape, const float* inverse, std::int64_t position, float* cosines, float* sines);

// One token: `projected` [heads + 2 * kv_heads, head_dim]. Norms (where the model has them) and rotates its queries
// into `queries` [heads, head_dim], its keys and values into slot `slot` of page `page` of this layer.
void place_token(const RemoraShape& shape, const RemoraLayer& weights, int layer, const float* projected,
                 const float* cosines, const float* sines, Number* queries, Number* kv, std::int64_t page, int slot);

}  // namespace remora
