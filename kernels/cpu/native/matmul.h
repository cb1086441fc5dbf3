// Products of activations and packed weights.
#pragma once

#include "matrix.h"
#include "team.h"

namespace remora {

// Each is a phase of its own. Every element is one sum over the inputs in their order, whatever the number of rows and
// members: a row's result does not depend on what else is in the batch.

// to [rows, stride] = x [rows, inputs] times the weights.
void multiply(Team::Member& member, const Rows& x, int rows, const Packed& weights, float* to, std::int64_t stride);

// to = from + the same. Each of them [rows, stride], and not the same memory.
void multiply_add(Team::Member& member, const Rows& x, int rows, const Packed& weights, const float* from, float* to,
                  std::int64_t stride);

// to [rows, outputs / 2] = silu(gate) * up. Each panel holds 16 rows of the gate's weights, then the same 16 of up's.
void multiply_gated(Team::Member& member, const Rows& x, int rows, const Packed& weights, Number* to);

}  // namespace remora
