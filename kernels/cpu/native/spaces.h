// What layers leave on their way through a step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "buffer.h"
#include "model.h"

namespace remora {

// Rows on their way into a product. Bytes and scales: for int8 weights.
struct Prepared {
  Number* normed;
  std::int8_t* bytes;
  RowScale* scales;
};

// All that one layer writes but K and V, each in a place of its own: nothing in it is written for two reasons (see
// team.h). `hidden` (what comes in), `middle` (after attention): [rows, hidden]; `projected`: [rows, heads + 2 *
// kv_heads, head_dim]; `queries`, `attended`: [rows, heads, head_dim]; `inner`: [rows, inner]. Behind the last layer,
// `for_qkv` is the head's.
struct Space {
  float *hidden, *middle, *projected;
  Number *queries, *attended, *inner;
  Prepared for_qkv, for_out, for_gate_up, for_down;
};

// Spaces for as many layers as members may be apart.
class Spaces {
 public:
  // `rows`: at least one. Throws bad_alloc.
  void fit(std::int64_t rows, const RemoraShape& shape, bool quantised) {
    Space nowhere;
    const std::int64_t bytes = carve(nullptr, rows, shape, quantised, nowhere);
    const std::int64_t most = shape.layers + 1;
    spaces_.resize(std::clamp(kBytes / bytes, std::min(kFewest, most), most));
    char* at = memory_.fit(bytes * depth());
    for (Space& space : spaces_) at += carve(at, rows, shape, quantised, space);
  }

  int depth() const { return static_cast<int>(spaces_.size()); }
  const Space& of(int layer) const { return spaces_[layer % depth()]; }

 private:
  // With few rows members may be a whole step apart. With many a layer takes longer than anybody is away, as a rule, and
  // memory beyond the caches would cost more than waiting.
  static constexpr std::int64_t kBytes = 2 << 20;
  // Before layer n all wait until nobody is in layer n - depth + 1 any more. With two spaces that is the layer that they
  // come from themselves, and each would wait for the others.
  static constexpr std::int64_t kFewest = 3;

  // Gives the bytes it takes.
  static std::int64_t carve(char* from, std::int64_t rows, const RemoraShape& shape, bool quantised, Space& space) {
    std::int64_t taken = 0;
    const auto take = [&]<class T>(T*& to, std::int64_t count) {
      to = reinterpret_cast<T*>(from + taken);
      taken += (count * static_cast<std::int64_t>(sizeof(T)) + 63) / 64 * 64;
    };
    const std::int64_t heads = shape.heads * shape.head_dim, keys = shape.kv_heads * shape.head_dim;
    take(space.hidden, rows * shape.hidden);
    take(space.middle, rows * shape.hidden);
    take(space.projected, rows * (heads + 2 * keys));
    take(space.queries, rows * heads);
    take(space.attended, rows * heads);
    take(space.inner, rows * shape.inner);
    for (Prepared* into : {&space.for_qkv, &space.for_out, &space.for_gate_up, &space.for_down}) {
      take(into->normed, rows * shape.hidden);
      take(into->bytes, quantised ? rows * std::max<std::int64_t>({shape.hidden, shape.inner, heads}) : 0);
      take(into->scales, quantised ? rows : 0);
    }
    return taken;
  }

  Buffer<char> memory_;
  std::vector<Space> spaces_;
};

}  // namespace remora
