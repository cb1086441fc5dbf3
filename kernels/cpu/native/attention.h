// Attention over the paged cache.
//
// A sequence's new tokens are cut into tiles; a tile's tokens and all query heads of a KV head share each load of K and
// V. Keys are taken in chunks at fixed positions, each with a softmax of its own, and the chunks of a row are put
// together in their order: a row's result depends neither on its tile nor on who computed which chunk.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "chunk.h"
#include "model.h"
#include "team.h"

namespace remora {

// Tokens [token, token + count) of the batch, at positions `start` and on of one sequence.
struct Tile {
  int token, count, start;
  const std::int64_t* pages;
  std::int64_t part = -1;  // Where the first of its chunks is put together, if it is split.

  int length() const { return start + count; }
  int chunks() const { return (length() + kChunk - 1) / kChunk; }
};

// A step's tiles, made once for all layers.
class AttentionPlan {
 public:
  // `layers`: how many at a time may be worked on, by members that are that late.
  AttentionPlan(const RemoraShape& shape, const RemoraBatch& batch, int members, int layers);

  // One layer: `out` [tokens, heads, head_dim] for queries of that shape. Called by every member.
  void run(Team::Member& member, int layer, const Number* kv, const Number* queries, Number* out);

 private:
  struct Item {
    int tile, chunk;  // Chunk -1: all of them.
  };
  struct Place {
    int head, chunk;
  };
  struct Layer {
    int number;
    const Number* kv;
    const Number* queries;
    Number* out;
    float* parts;
  };

  void cut(const RemoraBatch& batch);
  void split(int members);
  void whole(const Tile& tile, const Layer& layer) const;
  void piece(int index, int chunk, const Layer& layer) const;
  void put_together(int index, const Layer& layer);
  void look(const Tile& tile, Place here, Place next, const Layer& layer, float* seen) const;
  const Number* keys_of(const Tile& tile, Place place, int block, const Layer& layer) const;
  Number* output(const Tile& tile, int head, int row, const Layer& layer) const;

  const RemoraShape& shape_;
  const int group_;  // Query heads of a KV head.
  const int seen_;   // Size of what a row has seen.
  std::vector<Tile> tiles_;
  std::vector<Item> items_;
  const int layers_;
  std::int64_t size_of_parts_ = 0;
  std::unique_ptr<float[]> parts_;  // Of `layers_` layers: of split tiles: [chunk][KV head][row].
  std::unique_ptr<std::atomic<int>[]> left_;  // Chunks of each tile that nobody has done yet.
};

}  // namespace remora
