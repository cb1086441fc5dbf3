// What a step reads: the model's shape and weights, the K/V cache, and the batch. The C interface:
// kernels/cpu/library.py mirrors it field by field.
#pragma once

#include <cstdint>

#include "matrix.h"
#include "sample.h"

extern "C" {

// `page_size` in tokens, a multiple of 16. `head_dim` a multiple of 32, `hidden` of 32, `inner` of 16.
struct RemoraShape {
  std::int32_t hidden, inner, layers, heads, kv_heads, head_dim, vocab, page_size, num_pages;
  float norm_eps, score_scale, rope_factor;
};

// Norms in float32, null where the model has none.
struct RemoraLayer {
  RemoraMatrix qkv, out, gate_up, down;
  const float *input_norm, *post_norm, *q_norm, *k_norm;
};

// `embedding` [vocab, hidden], plain; `inverse`: rope's inverse frequencies [head_dim / 2].
// `kv`: [layers][num_pages][kv_heads][K, V][page_size * head_dim], see attention.h.
struct RemoraWeights {
  const remora::Number* embedding;
  RemoraMatrix head;
  const float *norm, *inverse;
  const RemoraLayer* layers;
  remora::Number* kv;
};

// `rows` sequences with q_lens[row] tokens each, the last of kv_lens[row]; their tokens lie one after the other.
// `pages`: [rows, table_width]. `wanted`: the tokens of the batch whose logits [num_wanted, vocab] are needed. `draws`,
// `chosen`: how a token is chosen from each of the first `num_draws` rows of logits, and which one is.
struct RemoraBatch {
  std::int32_t rows, tokens, num_wanted, table_width, num_draws;
  const std::int64_t *token_ids, *q_lens, *kv_lens, *pages, *wanted;
  float* logits;
  const RemoraDraw* draws;
  std::int64_t* chosen;
};

}  // extern "C"

namespace remora {

inline const Number* kv_of(const RemoraShape& shape, const Number* kv, int layer, std::int64_t page, int head) {
  const std::int64_t plane = static_cast<std::int64_t>(shape.page_size) * shape.head_dim;
  return kv + ((static_cast<std::int64_t>(layer) * shape.num_pages + page) * shape.kv_heads + head) * 2 * plane;
}

}  // namespace remora
