// Rows of activations as int8 weights take them.
#pragma once

#include "matrix.h"

namespace remora {

// One row by itself. Each block of 64 numbers (the last of a row: 32, then 16) is rotated by a Hadamard matrix, as the
// weights were, which leaves products what they are and spreads outliers (QuaRot, Ashkboos et al. 2024). Then
// to[i] = round(x[i] / scale), half to even, scale = the largest |x| / 127. A row of zeros has scale 0. One with NaN or
// infinity has scale NaN, so that all its products are. `size` is a multiple of 16, `to` of that size.
void quantise(const Number* x, int size, std::int8_t* to, RowScale* scale);

}  // namespace remora
