// What becomes of a tile's sums: two registers of a row's outputs at a time, their bias added.
#pragma once

#include <cstdint>

#include "number.h"

namespace remora {

// to [rows, stride] = the sums.
struct Store {
  float* to;
  std::int64_t stride;
  int outputs;

  void operator()(int row, int column, Lanes a, Lanes b) const {
    put(row, column, a);
    put(row, column + kLanes, b);
  }

  void put(int row, int column, Lanes a) const {
    float* at = to + row * stride + column;
    if (column + kLanes <= outputs) return store(at, a);
    put_some(at, outputs - column, a);
  }

  // Kept apart: within a tile it would cost the sums their registers.
  __attribute__((noinline)) static void put_some(float* at, int count, Lanes a) {
    float all[kLanes];
    store(all, a);
    for (int lane = 0; lane < count; ++lane) at[lane] = all[lane];
  }
};

// to [rows, stride] = from + the sums.
struct Add {
  const float* from;
  float* to;
  std::int64_t stride;

  void operator()(int row, int column, Lanes a, Lanes b) const {
    const std::int64_t at = row * stride + column;
    store(to + at, add(load(from + at), a));
    store(to + at + kLanes, add(load(from + at + kLanes), b));
  }
};

// to [rows, stride] = silu(gate) * up: each panel holds 16 rows of the gate's weights, then the same 16 of up's.
struct Gate {
  Number* to;
  std::int64_t stride;

  void operator()(int row, int column, Lanes gate, Lanes up) const {
    const Lanes sigmoid = div(gate, add(splat(1.0f), exponential(sub(splat(0.0f), gate))));
    narrow(to + row * stride + column / 2, mul(sigmoid, up));
  }
};

}  // namespace remora
