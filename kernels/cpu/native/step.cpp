// A whole step of the decoder, and the C interface to it.

#include <chrono>
#include <cstdlib>
#include <new>
#include <vector>

#include "attention.h"
#include "matmul.h"
#include "model.h"
#include "rows.h"
#include "team.h"

namespace remora {

namespace {

constexpr int kFewRows = 16;  // So few that every member computes their norms for itself, sooner than it could wait.

enum Part { kNorm, kProjections, kPlace, kAttention, kOutput, kGateUp, kDown, kHead, kParts };

// Memory that grows and is not kept across growth. Aligned for whole registers.
template <class T>
class Buffer {
 public:
  ~Buffer() { std::free(data_); }
  T* fit(std::int64_t count) {
    const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    if (bytes <= size_) return data_;
    std::free(data_);
    size_ = 0;  // A smaller step may come after one that there is no memory for.
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
    size_ = bytes;
    return data_;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

class Clock {
 public:
  explicit Clock(double* times) : times_(times), last_(now()) {}
  void lap(Part part) {
    const double time = now();
    times_[part] += time - last_;
    last_ = time;
  }

 private:
  static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  double* times_;
  double last_;
};

class Decoder {
 public:
  Decoder(const RemoraShape& shape, const RemoraWeights& weights, int threads)
      : shape_(shape), weights_(weights), layers_(weights.layers, weights.layers + shape.layers), team_(threads),
        own_normed_(threads) {}

  void step(const RemoraBatch& batch) {
    const std::int64_t tokens = batch.tokens, heads = shape_.heads * shape_.head_dim;
    const std::int64_t projected = heads + 2 * shape_.kv_heads * shape_.head_dim;
    hidden_at_ = hidden_.fit(tokens * shape_.hidden);
    projected_at_ = projected_.fit(tokens * projected);
    rotations_at_ = rotations_.fit(tokens * shape_.head_dim);
    normed_at_ = normed_.fit(std::max<std::int64_t>(tokens, batch.num_wanted) * shape_.hidden);
    queries_at_ = queries_.fit(tokens * heads);
    attended_at_ = attended_.fit(tokens * heads);
    inner_at_ = inner_.fit(tokens * shape_.inner);
    for (auto& own : own_normed_) own.fit(kFewRows * shape_.hidden);
    places_.clear();
    for (int row = 0; row < batch.rows; ++row)
      for (std::int64_t at = batch.kv_lens[row] - batch.q_lens[row]; at < batch.kv_lens[row]; ++at)
        places_.push_back({at, batch.pages[row * batch.table_width + at / shape_.page_size]});
    AttentionPlan attention(shape_, batch, team_.size());
    team_.run([&](int member) { compute(batch, attention, member); });
  }

  double times[kParts] = {};

 private:
  struct Place {
    std::int64_t position, page;
  };

  void compute(const RemoraBatch& batch, AttentionPlan& attention, int member) {
    double nobody_looks[kParts];
    Clock clock(member == 0 ? times : nobody_looks);
    const int tokens = batch.tokens, width = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
    const int heads = shape_.heads * shape_.head_dim;
    team_.each(tokens, [&](int token) { embed(batch, token); });
    for (int index = 0; index < shape_.layers; ++index) {
      const RemoraLayer& layer = layers_[index];
      const Number* x = normed(layer.input_norm, tokens, member);
      clock.lap(kNorm);
      multiply(team_, x, tokens, {layer.qkv, layer.qkv_bias, width, shape_.hidden}, projected_at_, width);
      clock.lap(kProjections);
      team_.each(tokens, [&](int token) { place(layer, index, token, width); });
      clock.lap(kPlace);
      attention.run(team_, index, weights_.kv, queries_at_, attended_at_);
      clock.lap(kAttention);
      multiply_add(team_, attended_at_, tokens, {layer.out, layer.out_bias, shape_.hidden, heads}, hidden_at_,
                   shape_.hidden);
      clock.lap(kOutput);
      x = normed(layer.post_norm, tokens, member);
      clock.lap(kNorm);
      multiply_gated(team_, x, tokens, {layer.gate_up, layer.gate_up_bias, 2 * shape_.inner, shape_.hidden}, inner_at_);
      clock.lap(kGateUp);
      multiply_add(team_, inner_at_, tokens, {layer.down, layer.down_bias, shape_.hidden, shape_.inner}, hidden_at_,
                   shape_.hidden);
      clock.lap(kDown);
    }
    if (batch.num_wanted == 0) return;
    team_.each(batch.num_wanted, [&](int row) {
      rms_norm(hidden_at_ + batch.wanted[row] * shape_.hidden, weights_.norm, shape_.hidden, shape_.norm_eps,
               normed_at_ + static_cast<std::int64_t>(row) * shape_.hidden);
    });
    multiply(team_, normed_at_, batch.num_wanted, {weights_.head, nullptr, shape_.vocab, shape_.hidden}, batch.logits,
             shape_.vocab);
    clock.lap(kHead);
  }

  void embed(const RemoraBatch& batch, int token) {
    const Number* from = weights_.embedding + batch.token_ids[token] * shape_.hidden;
    float* to = hidden_at_ + static_cast<std::int64_t>(token) * shape_.hidden;
    for (int i = 0; i < shape_.hidden; i += kLanes) store(to + i, widen(from + i));
    float* cosines = rotations_at_ + static_cast<std::int64_t>(token) * shape_.head_dim;
    rotation(shape_, weights_.inverse, places_[token].position, cosines, cosines + shape_.head_dim / 2);
  }

  void place(const RemoraLayer& layer, int index, int token, int width) {
    const Place where = places_[token];
    const float* cosines = rotations_at_ + static_cast<std::int64_t>(token) * shape_.head_dim;
    place_token(shape_, layer, index, projected_at_ + static_cast<std::int64_t>(token) * width, cosines,
                cosines + shape_.head_dim / 2,
                queries_at_ + static_cast<std::int64_t>(token) * shape_.heads * shape_.head_dim, weights_.kv,
                where.page, static_cast<int>(where.position % shape_.page_size));
  }

  const Number* normed(const float* weight, int tokens, int member) {
    const bool alone = tokens <= kFewRows;
    Number* to = alone ? own_normed_[member].fit(0) : normed_at_;
    const auto norm = [&](int token) {
      rms_norm(hidden_at_ + static_cast<std::int64_t>(token) * shape_.hidden, weight, shape_.hidden, shape_.norm_eps,
               to + static_cast<std::int64_t>(token) * shape_.hidden);
    };
    if (alone) {
      for (int token = 0; token < tokens; ++token) norm(token);
    } else {
      team_.each(tokens, norm);
    }
    return to;
  }

  const RemoraShape shape_;
  const RemoraWeights weights_;
  const std::vector<RemoraLayer> layers_;
  Team team_;
  std::vector<Buffer<Number>> own_normed_;
  std::vector<Place> places_;  // Of each token of the step.
  Buffer<float> hidden_, projected_, rotations_;
  Buffer<Number> normed_, queries_, attended_, inner_;
  float *hidden_at_ = nullptr, *projected_at_ = nullptr, *rotations_at_ = nullptr;
  Number *normed_at_ = nullptr, *queries_at_ = nullptr, *attended_at_ = nullptr, *inner_at_ = nullptr;
};

// What of the batch lies outside the model's or the cache's bounds; null for nothing.
const char* fault(const RemoraShape& shape, const RemoraBatch& batch) {
  std::int64_t tokens = 0;
  for (int row = 0; row < batch.rows; ++row) {
    const std::int64_t count = batch.q_lens[row], length = batch.kv_lens[row];
    const std::int64_t used = (length + shape.page_size - 1) / shape.page_size;
    if (count < 1 || length < count || used > batch.table_width) return "lengths at odds with the page table";
    for (std::int64_t page = 0; page < used; ++page) {
      const std::int64_t number = batch.pages[row * batch.table_width + page];
      if (number < 0 || number >= shape.num_pages) return "there is no such page";
    }
    tokens += count;
  }
  if (tokens != batch.tokens) return "lengths at odds with the number of tokens";
  for (int token = 0; token < batch.tokens; ++token)
    if (batch.token_ids[token] < 0 || batch.token_ids[token] >= shape.vocab) return "a token beyond the vocabulary";
  for (int row = 0; row < batch.num_wanted; ++row)
    if (batch.wanted[row] < 0 || batch.wanted[row] >= batch.tokens) return "a wanted row beyond the batch";
  return nullptr;
}

}  // namespace

}  // namespace remora

extern "C" {


__attribute__((visibility("default"))) void* remora_open(const RemoraShape* shape, const RemoraWeights* weights,
                                                         std::int32_t threads) {
  try {
    return new remora::Decoder(*shape, *weights, threads);
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Null, or why nothing was computed.
__attribute__((visibility("default"))) const char* remora_step(void* decoder, const RemoraShape* shape,
                                                               const RemoraBatch* batch) {
  if (const char* why = remora::fault(*shape, *batch)) return why;
  try {
    static_cast<remora::Decoder*>(decoder)->step(*batch);
    return nullptr;
  } catch (const std::bad_alloc&) {
    return "no memory for a step of this size";
  }
}

// Seconds that the first member has spent on each part of all steps so far.
__attribute__((visibility("default"))) const double* remora_times(void* decoder) {
  return static_cast<remora::Decoder*>(decoder)->times;
}

__attribute__((visibility("default"))) void remora_close(void* decoder) {
  delete static_cast<remora::Decoder*>(decoder);
}

}  // extern "C"
