// A matrix of weights, and rows that are multiplied by it.
#pragma once

#include <cstdint>

#include "number.h"

extern "C" {

// The C interface: kernels/cpu/library.py mirrors it field by field.
//
// `panels`: [outputs / 32][inputs / n][32][n], n being kPair Numbers, or, with `scales`, 4 bytes, each of which stands for
// (byte - 128) * the output's scale. Outputs are filled up to whole panels, here and in the vectors, which have one number
// for each output. `bias`: null for none. `scales`: null where weights are Numbers.
struct RemoraMatrix {
  const void* panels;
  const float* bias;
  const float* scales;
};

}  // extern "C"

namespace remora {

// Columns of outputs that are computed together, and lie together in memory.
constexpr int kPanel = 2 * kLanes;

// `matrix` with its size.
struct Packed {
  const RemoraMatrix& matrix;
  int outputs;
  int inputs;

  int num_panels() const { return (outputs + kPanel - 1) / kPanel; }

  // Each weight being a T.
  template <class T>
  const T* panel(int index) const {
    return static_cast<const T*>(matrix.panels) + static_cast<std::int64_t>(index) * kPanel * inputs;
  }
};

// Of a row: what 1 of its bytes is worth, and -128 times their sum.
struct RowScale {
  float scale;
  std::int32_t start;
};

// [rows, inputs] as the matrix takes them: Numbers, or signed bytes.
struct Rows {
  const Number* numbers = nullptr;
  const std::int8_t* bytes = nullptr;
  const RowScale* scales = nullptr;
};

}  // namespace remora
