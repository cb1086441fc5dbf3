// A whole step of the decoder, and the C interface to it.

#include <algorithm>
#include <new>
#include <vector>

#include "attention.h"
#include "buffer.h"
#include "clock.h"
#include "matmul.h"
#include "model.h"
#include "quantise.h"
#include "rows.h"
#include "team.h"

namespace remora {

namespace {

constexpr int kFewRows = 16;  // So few that every member prepares them for itself, sooner than it could wait.

enum Part { kNorm, kProjections, kPlace, kAttention, kOutput, kGateUp, kDown, kHead, kParts };

class Decoder {
 public:
  Decoder(const RemoraShape& shape, const RemoraWeights& weights, int threads)
      : shape_(shape), weights_(weights), layers_(weights.layers, weights.layers + shape.layers), team_(threads),
        own_(threads) {}

  void step(const RemoraBatch& batch) {
    const std::int64_t tokens = batch.tokens, heads = shape_.heads * shape_.head_dim;
    const std::int64_t projected = heads + 2 * shape_.kv_heads * shape_.head_dim;
    hidden_at_ = hidden_.fit(tokens * shape_.hidden);
    projected_at_ = projected_.fit(tokens * projected);
    rotations_at_ = rotations_.fit(tokens * shape_.head_dim);
    shared_.fit(std::max<std::int64_t>(tokens, batch.num_wanted), shape_);
    for (Room& own : own_) own.fit(kFewRows, shape_);
    queries_at_ = queries_.fit(tokens * heads);
    attended_at_ = attended_.fit(tokens * heads);
    inner_at_ = inner_.fit(tokens * shape_.inner);
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

  // For rows on their way into a product: all members' together, or each member's own.
  struct Room {
    Buffer<Number> normed;
    Buffer<std::int8_t> bytes;
    Buffer<RowScale> scales;

    void fit(std::int64_t rows, const RemoraShape& shape) {
      normed.fit(rows * shape.hidden);
      bytes.fit(rows * std::max({shape.hidden, shape.inner, shape.heads * shape.head_dim}));
      scales.fit(rows);
    }
  };

  void compute(const RemoraBatch& batch, AttentionPlan& attention, int member) {
    double nobody_looks[kParts];
    Clock clock(member == 0 ? times : nobody_looks);
    const int tokens = batch.tokens, width = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
    const int heads = shape_.heads * shape_.head_dim;
    team_.each(tokens, [&](int token) { embed(batch, token); });
    for (int index = 0; index < shape_.layers; ++index) {
      const RemoraLayer& layer = layers_[index];
      Rows x = normed(layer.input_norm, layer.qkv, nullptr, tokens, member);
      clock.lap(kNorm);
      multiply(team_, x, tokens, {layer.qkv, width, shape_.hidden}, projected_at_, width);
      clock.lap(kProjections);
      team_.each(tokens, [&](int token) { place(layer, index, token, width); });
      clock.lap(kPlace);
      attention.run(team_, index, weights_.kv, queries_at_, attended_at_);
      clock.lap(kAttention);
      x = inputs(layer.out, attended_at_, heads, tokens, member);
      multiply_add(team_, x, tokens, {layer.out, shape_.hidden, heads}, hidden_at_, shape_.hidden);
      clock.lap(kOutput);
      x = normed(layer.post_norm, layer.gate_up, nullptr, tokens, member);
      clock.lap(kNorm);
      multiply_gated(team_, x, tokens, {layer.gate_up, 2 * shape_.inner, shape_.hidden}, inner_at_);
      clock.lap(kGateUp);
      x = inputs(layer.down, inner_at_, shape_.inner, tokens, member);
      multiply_add(team_, x, tokens, {layer.down, shape_.hidden, shape_.inner}, hidden_at_, shape_.hidden);
      clock.lap(kDown);
    }
    if (batch.num_wanted == 0) return;
    const Rows x = normed(weights_.norm, weights_.head, batch.wanted, batch.num_wanted, member);
    multiply(team_, x, batch.num_wanted, {weights_.head, shape_.vocab, shape_.hidden}, batch.logits, shape_.vocab);
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

  // The norm of `rows` hidden states, of tokens `which` (null: the first ones), as the matrix takes them.
  Rows normed(const float* weight, const RemoraMatrix& matrix, const std::int64_t* which, int rows, int member) {
    Number* to = room(rows, member).normed.get();
    each_row(rows, member, [&](int row) {
      const std::int64_t token = which != nullptr ? which[row] : row;
      Number* at = to + static_cast<std::int64_t>(row) * shape_.hidden;
      rms_norm(hidden_at_ + token * shape_.hidden, weight, shape_.hidden, shape_.norm_eps, at);
      prepare(matrix, at, shape_.hidden, row, rows, member);
    });
    return prepared(matrix, to, rows, member);
  }

  // x [rows, size] as the matrix takes it.
  Rows inputs(const RemoraMatrix& matrix, const Number* x, int size, int rows, int member) {
    if (matrix.scales != nullptr)
      each_row(rows, member, [&](int row) {
        prepare(matrix, x + static_cast<std::int64_t>(row) * size, size, row, rows, member);
      });
    return prepared(matrix, x, rows, member);
  }

  template <class Work>
  void each_row(int rows, int member, const Work& work) {
    if (rows > kFewRows) return team_.each(rows, work);
    for (int row = 0; row < rows; ++row) work(row);
  }

  void prepare(const RemoraMatrix& matrix, const Number* x, int size, int row, int rows, int member) {
    if (matrix.scales == nullptr) return;
    const Room& to = room(rows, member);
    quantise(x, size, to.bytes.get() + static_cast<std::int64_t>(row) * size, to.scales.get() + row);
  }

  Rows prepared(const RemoraMatrix& matrix, const Number* x, int rows, int member) {
    if (matrix.scales == nullptr) return {x};
    const Room& at = room(rows, member);
    return {nullptr, at.bytes.get(), at.scales.get()};
  }

  Room& room(int rows, int member) { return rows > kFewRows ? shared_ : own_[member]; }

  const RemoraShape shape_;
  const RemoraWeights weights_;
  const std::vector<RemoraLayer> layers_;
  Team team_;
  Room shared_;
  std::vector<Room> own_;
  std::vector<Place> places_;  // Of each token of the step.
  Buffer<float> hidden_, projected_, rotations_;
  Buffer<Number> queries_, attended_, inner_;
  float *hidden_at_ = nullptr, *projected_at_ = nullptr, *rotations_at_ = nullptr;
  Number *queries_at_ = nullptr, *attended_at_ = nullptr, *inner_at_ = nullptr;
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
