// Products of activations and packed weights.
#pragma once

#include "number.h"
#include "team.h"

namespace remora {

// Columns of outputs that are computed together, and lie together in memory.
constexpr int kPanel = 2 * kLanes;

// [outputs / 32][inputs / kPair][32][kPair]; outputs are filled up with zeros to whole panels.
struct Packed {
  const Number* panels;
  const float* bias;  // [outputs, filled up], or null.
  int outputs;
  int inputs;

  int num_panels() const { return (outputs + kPanel - 1) / kPanel; }
  const Number* panel(int index) const { return panels + static_cast<std::int64_t>(index) * kPanel * inputs; }
};

// Every element is one sum over the inputs in their order, whatever the number of rows and members: a row's result does
// not depend on what else is in the batch.

// to [rows, stride] = x [rows, inputs] times the weights.
void multiply(Team& team, const Number* x, int rows, const Packed& weights, float* to, std::int64_t stride);

// The same, added to what is there.
void multiply_add(Team& team, const Number* x, int rows, const Packed& weights, float* to, std::int64_t stride);

// to [rows, outputs / 2] = silu(gate) * up. Each panel holds 16 rows of the gate's weights, then the same 16 of up's.
void multiply_gated(Team& team, const Number* x, int rows, const Packed& weights, Number* to);

}  // namespace remora
