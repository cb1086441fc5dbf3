#include "attention.h"

#include <algorithm>
#include <cstdint>

namespace remora {

namespace {

// Numbers that a step's split tiles leave for each other, about: long prompts in large pieces on many cores would leave
// gigabytes. Tiles beyond it stay whole, and the pieces of the others fill in behind them.
constexpr std::int64_t kMostParts = 8 << 20;

thread_local std::vector<float> work;  // What a tile's rows have seen before, and of the chunk at hand.

float* workspace(std::size_t size) {
  if (work.size() < size) work.resize(size);
  return work.data();
}

}  // namespace

AttentionPlan::AttentionPlan(const RemoraShape& shape, const RemoraBatch& batch, int members, int layers)
    : shape_(shape), group_(shape.heads / shape.kv_heads), seen_(Seen::size(shape.head_dim)), layers_(layers) {
  cut(batch);
  split(members);
}

void AttentionPlan::cut(const RemoraBatch& batch) {
  const int most = std::max(1, kTileRows / group_);
  int token = 0;
  for (int row = 0; row < batch.rows; ++row) {
    const int count = static_cast<int>(batch.q_lens[row]), start = static_cast<int>(batch.kv_lens[row]) - count;
    const std::int64_t* pages = batch.pages + static_cast<std::int64_t>(row) * batch.table_width;
    for (int done = 0; done < count; done += most)
      tiles_.push_back({token + done, std::min(most, count - done), start + done, pages});
    token += count;
  }
}

// Long tiles are shared out by chunks where there are too few of them to keep all members busy.
void AttentionPlan::split(int members) {
  int total = 0;
  for (const Tile& tile : tiles_) total += tile.chunks();
  std::int64_t parts = 0;
  left_ = std::make_unique<std::atomic<int>[]>(tiles_.size());
  for (std::size_t index = 0; index < tiles_.size(); ++index) {
    Tile& tile = tiles_[index];
    const int number = static_cast<int>(index), chunks = tile.chunks();
    const std::int64_t size = static_cast<std::int64_t>(chunks) * shape_.heads * tile.count * seen_;
    const bool full = parts > 0 && parts + size > kMostParts;
    if (members == 1 || chunks == 1 || chunks * 4 * members <= total || full) {
      items_.push_back({number, -1});
      continue;
    }
    tile.part = parts;
    parts += size;
    left_[index].store(chunks, std::memory_order_relaxed);
    for (int chunk = 0; chunk < chunks; ++chunk) items_.push_back({number, chunk});
  }
  size_of_parts_ = parts;
  parts_.reset(new float[parts * layers_]);  // Not filled: most of it may never be needed.
  const auto cost = [this](const Item& item) { return item.chunk < 0 ? tiles_[item.tile].chunks() : 1; };
  std::stable_sort(items_.begin(), items_.end(), [&](const Item& a, const Item& b) { return cost(a) > cost(b); });
}

void AttentionPlan::run(Team::Member& member, int layer, const Number* kv, const Number* queries, Number* out) {
  const Layer here{layer, kv, queries, out, parts_.get() + layer % layers_ * size_of_parts_};
  const auto work = [&](int index) {
    const Item item = items_[index];
    if (item.chunk < 0) {
      whole(tiles_[item.tile], here);
    } else {
      piece(item.tile, item.chunk, here);
    }
  };
  member.each(static_cast<int>(items_.size()), work, [&](int index) {
    if (items_[index].chunk >= 0) put_together(items_[index].tile, here);
  });
}

void AttentionPlan::whole(const Tile& tile, const Layer& layer) const {
  const int rows = tile.count * group_, chunks = tile.chunks();
  float* seen = workspace(2 * static_cast<std::size_t>(rows) * seen_);
  float* later = seen + rows * seen_;
  for (int head = 0; head < shape_.kv_heads; ++head) {
    look(tile, {head, 0}, chunks > 1 ? Place{head, 1} : Place{head + 1, 0}, layer, seen);
    for (int chunk = 1; chunk < chunks; ++chunk) {
      look(tile, {head, chunk}, chunk + 1 < chunks ? Place{head, chunk + 1} : Place{head + 1, 0}, layer, later);
      for (int row = 0; row < rows; ++row)
        join(Seen{seen + row * seen_}, Seen{later + row * seen_}, shape_.head_dim);
    }
    for (int row = 0; row < rows; ++row)
      finish(Seen{seen + row * seen_}, shape_.head_dim, output(tile, head, row, layer));
  }
}

void AttentionPlan::piece(int index, int chunk, const Layer& layer) const {
  const Tile& tile = tiles_[index];
  const int rows = tile.count * group_;
  const std::int64_t of_chunk = static_cast<std::int64_t>(shape_.heads) * tile.count * seen_;
  float* first = layer.parts + tile.part;
  for (int head = 0; head < shape_.kv_heads; ++head)
    look(tile, {head, chunk}, {head + 1, chunk}, layer,
         first + chunk * of_chunk + static_cast<std::int64_t>(head) * rows * seen_);
}

// By who has done the last of the tile's chunks.
void AttentionPlan::put_together(int index, const Layer& layer) {
  if (left_[index].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  const Tile& tile = tiles_[index];
  const int rows = tile.count * group_;
  const std::int64_t of_chunk = static_cast<std::int64_t>(shape_.heads) * tile.count * seen_;
  const float* first = layer.parts + tile.part;
  left_[index].store(tile.chunks(), std::memory_order_relaxed);  // For the next layer.
  float* seen = workspace(seen_);  // What is there stays as it is: it may be written once more.
  for (int head = 0; head < shape_.kv_heads; ++head) {
    for (int row = 0; row < rows; ++row) {
      const float* part = first + static_cast<std::int64_t>(head * rows + row) * seen_;
      std::copy_n(part, seen_, seen);
      for (int later = 1; later < tile.chunks(); ++later)
        join(Seen{seen}, Seen{const_cast<float*>(part + later * of_chunk)}, shape_.head_dim);
      finish(Seen{seen}, shape_.head_dim, output(tile, head, row, layer));
    }
  }
}

void AttentionPlan::look(const Tile& tile, Place here, Place next, const Layer& layer, float* seen) const {
  const int begin = here.chunk * kChunk, rows = tile.count * group_, size = shape_.head_dim;
  const std::int64_t plane = static_cast<std::int64_t>(shape_.page_size) * size;
  Chunk chunk;
  chunk.width = std::min(kChunk, tile.length() - begin);
  for (int block = 0; block * kLanes < chunk.width; ++block) {
    chunk.keys[block] = keys_of(tile, here, block, layer);
    chunk.values[block] = chunk.keys[block] + plane;
  }
  for (int block = 0; block < kAhead; ++block) chunk.next[block] = keys_of(tile, next, block, layer);
  constexpr int kMost = 256;
  const Number* queries[kMost];
  int valid[kMost];
  for (int row = 0; row < rows; ++row) {
    const int token = tile.token + row / group_, query_head = here.head * group_ + row % group_;
    queries[row] = layer.queries + (static_cast<std::int64_t>(token) * shape_.heads + query_head) * size;
    valid[row] = std::clamp(tile.start + row / group_ + 1 - begin, 0, chunk.width);
  }
  attend(rows, queries, valid, chunk, size, shape_.score_scale, seen);
}

// A block of a chunk's keys; of the last one, the last head's, where there are no more.
const Number* AttentionPlan::keys_of(const Tile& tile, Place place, int block, const Layer& layer) const {
  const int key = std::min(place.chunk * kChunk + block * kLanes, tile.length() - 1) / kLanes * kLanes;
  const int head = std::min(place.head, shape_.kv_heads - 1);
  const Number* keys = kv_of(shape_, layer.kv, layer.number, tile.pages[key / shape_.page_size], head);
  return keys + key % shape_.page_size * shape_.head_dim;
}

Number* AttentionPlan::output(const Tile& tile, int head, int row, const Layer& layer) const {
  const int token = tile.token + row / group_, query_head = head * group_ + row % group_;
  return layer.out + (static_cast<std::int64_t>(token) * shape_.heads + query_head) * shape_.head_dim;
}

}  // namespace remora
