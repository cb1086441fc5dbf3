// A whole step of the decoder, and the C interface to it.

#include <algorithm>
#include <new>
#include <vector>

#include "attention.h"
#include "clock.h"
#include "matmul.h"
#include "model.h"
#include "quantise.h"
#include "rows.h"
#include "spaces.h"
#include "team.h"

namespace remora {

namespace {

constexpr int kFewRows = 16;  // So few that every member prepares them for itself, sooner than it could wait.

enum Part { kNorm, kProjections, kPlace, kAttention, kOutput, kGateUp, kDown, kHead, kSample, kParts };

class Decoder {
 public:
  Decoder(const RemoraShape& shape, const RemoraWeights& weights, int threads)
      : shape_(shape), weights_(weights), layers_(weights.layers, weights.layers + shape.layers), team_(threads),
        own_(threads), samplers_(threads) {}

  void step(const RemoraBatch& batch) {
    const std::int64_t tokens = batch.tokens;
    if (tokens == 0) return;
    const bool quantised = weights_.head.scales != nullptr || layers_.front().qkv.scales != nullptr;
    spaces_.fit(std::max<std::int64_t>(tokens, batch.num_wanted), shape_, quantised);
    rotations_at_ = rotations_.fit(tokens * shape_.head_dim);
    for (Room& own : own_) own.fit(shape_);
    if (batch.num_draws > 0)
      for (Sampler& sampler : samplers_) sampler.fit(shape_.vocab);
    places_.clear();
    for (int row = 0; row < batch.rows; ++row)
      for (std::int64_t at = batch.kv_lens[row] - batch.q_lens[row]; at < batch.kv_lens[row]; ++at)
        places_.push_back({at, batch.pages[row * batch.table_width + at / shape_.page_size]});
    AttentionPlan attention(shape_, batch, team_.size(), spaces_.depth());
    team_.run([&](Team::Member& member) { compute(batch, attention, member); });
  }

  double times[kParts] = {};

  std::int64_t repeats() const { return team_.repeats(); }

 private:
  struct Place {
    std::int64_t position, page;
  };

  // A member's own, for rows that it prepares for itself.
  struct Room {
    Buffer<Number> normed;
    Buffer<std::int8_t> bytes;
    Buffer<RowScale> scales;

    void fit(const RemoraShape& shape) {
      normed.fit(kFewRows * shape.hidden);
      bytes.fit(kFewRows * std::max({shape.hidden, shape.inner, shape.heads * shape.head_dim}));
      scales.fit(kFewRows);
    }
    Prepared prepared() const { return {normed.get(), bytes.get(), scales.get()}; }
  };

  void compute(const RemoraBatch& batch, AttentionPlan& attention, Team::Member& member) {
    double nobody_looks[kParts];
    Clock clock(member.index() == 0 ? times : nobody_looks);
    const int tokens = batch.tokens, width = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
    const int heads = shape_.heads * shape_.head_dim;
    std::vector<std::uint64_t> begins;  // The first phase of each layer.
    begins.reserve(shape_.layers);
    member.each(tokens, [&](int token) { embed(batch, token); });
    for (int index = 0; index < shape_.layers; ++index) {
      const RemoraLayer& layer = layers_[index];
      const Space& at = spaces_.of(index);
      begins.push_back(member.mark());
      // The space that this layer leaves its result in is of a layer that nobody may be in any more.
      if (const int last = index + 1 - spaces_.depth(); last >= 0) member.await(begins[last + 1]);
      Rows x = normed(at.hidden, layer.input_norm, layer.qkv, nullptr, tokens, at.for_qkv, member);
      clock.lap(kNorm);
      multiply(member, x, tokens, {layer.qkv, width, shape_.hidden}, at.projected, width);
      clock.lap(kProjections);
      member.each(tokens, [&](int token) { place(at, layer, index, token, width); });
      clock.lap(kPlace);
      attention.run(member, index, weights_.kv, at.queries, at.attended);
      clock.lap(kAttention);
      x = inputs(at.attended, layer.out, heads, tokens, at.for_out, member);
      multiply_add(member, x, tokens, {layer.out, shape_.hidden, heads}, at.hidden, at.middle, shape_.hidden);
      clock.lap(kOutput);
      x = normed(at.middle, layer.post_norm, layer.gate_up, nullptr, tokens, at.for_gate_up, member);
      clock.lap(kNorm);
      multiply_gated(member, x, tokens, {layer.gate_up, 2 * shape_.inner, shape_.hidden}, at.inner);
      clock.lap(kGateUp);
      x = inputs(at.inner, layer.down, shape_.inner, tokens, at.for_down, member);
      multiply_add(member, x, tokens, {layer.down, shape_.hidden, shape_.inner}, at.middle,
                   spaces_.of(index + 1).hidden, shape_.hidden);
      clock.lap(kDown);
    }
    if (batch.num_wanted == 0) return;
    const Space& last = spaces_.of(shape_.layers);
    const Rows x = normed(last.hidden, weights_.norm, weights_.head, batch.wanted, batch.num_wanted, last.for_qkv,
                          member);
    multiply(member, x, batch.num_wanted, {weights_.head, shape_.vocab, shape_.hidden}, batch.logits, shape_.vocab);
    clock.lap(kHead);
    member.each(batch.num_draws, [&](int row) { sample(batch, row, member.index()); });
    clock.lap(kSample);
  }

  void sample(const RemoraBatch& batch, int row, int member) {
    if (batch.draws[row].temperature < 0) return;
    const float* logits = batch.logits + static_cast<std::int64_t>(row) * shape_.vocab;
    batch.chosen[row] = samplers_[member].choose(logits, shape_.vocab, batch.draws[row]);
  }

  void embed(const RemoraBatch& batch, int token) {
    const Number* from = weights_.embedding + batch.token_ids[token] * shape_.hidden;
    float* to = spaces_.of(0).hidden + static_cast<std::int64_t>(token) * shape_.hidden;
    for (int i = 0; i < shape_.hidden; i += kLanes) store(to + i, widen(from + i));
    float* cosines = rotations_at_ + static_cast<std::int64_t>(token) * shape_.head_dim;
    rotation(shape_, weights_.inverse, places_[token].position, cosines, cosines + shape_.head_dim / 2);
  }

  void place(const Space& at, const RemoraLayer& layer, int index, int token, int width) {
    const Place where = places_[token];
    const float* cosines = rotations_at_ + static_cast<std::int64_t>(token) * shape_.head_dim;
    place_token(shape_, layer, index, at.projected + static_cast<std::int64_t>(token) * width, cosines,
                cosines + shape_.head_dim / 2,
                at.queries + static_cast<std::int64_t>(token) * shape_.heads * shape_.head_dim, weights_.kv,
                where.page, static_cast<int>(where.position % shape_.page_size));
  }

  // The norm of `rows` hidden states, of tokens `which` (null: the first ones), as the matrix takes them. `shared`: for
  // rows that all members prepare together.
  Rows normed(const float* hidden, const float* weight, const RemoraMatrix& matrix, const std::int64_t* which, int rows,
              const Prepared& shared, Team::Member& member) {
    const Prepared to = rows > kFewRows ? shared : own_[member.index()].prepared();
    each_row(rows, member, [&](int row) {
      const std::int64_t token = which != nullptr ? which[row] : row;
      Number* at = to.normed + static_cast<std::int64_t>(row) * shape_.hidden;
      rms_norm(hidden + token * shape_.hidden, weight, shape_.hidden, shape_.norm_eps, at);
      if (matrix.scales != nullptr) as_bytes(at, shape_.hidden, row, to);
    });
    return matrix.scales != nullptr ? Rows{nullptr, to.bytes, to.scales} : Rows{to.normed};
  }

  // x [rows, size] as the matrix takes it.
  Rows inputs(const Number* x, const RemoraMatrix& matrix, int size, int rows, const Prepared& shared,
              Team::Member& member) {
    if (matrix.scales == nullptr) return {x};
    const Prepared to = rows > kFewRows ? shared : own_[member.index()].prepared();
    each_row(rows, member,
             [&](int row) { as_bytes(x + static_cast<std::int64_t>(row) * size, size, row, to); });
    return {nullptr, to.bytes, to.scales};
  }

  template <class Work>
  void each_row(int rows, Team::Member& member, const Work& work) {
    if (rows > kFewRows) return member.each(rows, work);
    if (member.late()) return;
    for (int row = 0; row < rows; ++row) work(row);
  }

  static void as_bytes(const Number* x, int size, int row, const Prepared& to) {
    quantise(x, size, to.bytes + static_cast<std::int64_t>(row) * size, to.scales + row);
  }

  const RemoraShape shape_;
  const RemoraWeights weights_;
  const std::vector<RemoraLayer> layers_;
  Team team_;
  Spaces spaces_;
  std::vector<Room> own_;
  std::vector<Sampler> samplers_;
  std::vector<Place> places_;  // Of each token of the step.
  Buffer<float> rotations_;
  float* rotations_at_ = nullptr;
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
  if (batch.num_draws > batch.num_wanted) return "more draws than wanted rows";
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

// Work that was done once more, because a thread had been taken off its core, since the decoder was opened.
__attribute__((visibility("default"))) std::int64_t remora_repeats(void* decoder) {
  return static_cast<remora::Decoder*>(decoder)->repeats();
}

__attribute__((visibility("default"))) void remora_close(void* decoder) {
  delete static_cast<remora::Decoder*>(decoder);
}

}  // extern "C"
