// Attention of some rows to one chunk of keys: the inner loops of attention.
#pragma once

#include "number.h"

namespace remora {

constexpr int kChunk = 256;  // Keys.
constexpr int kBlocks = kChunk / kLanes;
constexpr int kAhead = 4;  // Blocks between what is asked of memory and what is used.
constexpr int kTileRows = 48;  // At most, unless one token has more query heads to a KV head.

// A chunk of one KV head, in blocks of 16 keys: keys [head_dim / kPair][16][kPair], values [16 / kPair][head_dim]
// [kPair].
// Beyond `width` keys there may be anything. `next`: the first blocks of keys that will be wanted after this chunk.
struct Chunk {
  const Number* keys[kBlocks];
  const Number* values[kBlocks];
  const Number* next[kAhead];
  int width;
};

// What a row has seen of its keys: sums [head_dim] of values weighted by e^(score - peak), and the weights' total.
// A row that has seen nothing has total 0.
struct Seen {
  float* data;

  static int size(int head_dim) { return head_dim + kLanes; }
  float& peak() const { return data[0]; }
  float& total() const { return data[1]; }
  float* sums() const { return data + kLanes; }
};

// `queries[r]`: [head_dim]; row r sees the first `valid[r]` keys; `seen`: [rows][Seen::size].
void attend(int rows, const Number* const* queries, const int* valid, const Chunk& chunk, int head_dim, float scale,
            float* seen);

// What was seen of later keys, added to `seen`.
void join(Seen seen, Seen later, int head_dim);

// The weighted mean, to [head_dim].
void finish(Seen seen, int head_dim, Number* to);

}  // namespace remora
