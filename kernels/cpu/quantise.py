"""Weights and activations as int8 (W8A8, dynamic): symmetric, weights by output, activations by row.

The scales are those of vLLM's and SGLang's `w8a8_int8`: one of each output channel, fixed, and one of each token, made
from its values in the step. Before that both are rotated, block by block, by the same Hadamard matrix (QuaRot, Ashkboos
et al. 2024): products stay what they are, and a few large numbers, which would make the steps of all others coarse, are
spread over their block.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64
MOST = 127
_PART = 4096
"""Outputs that are converted at once: in float32 a vocabulary's would be gigabytes."""
MAX_INPUTS = 65536
"""Longer sums could overflow: each product is below 2^15, and they are added in int32."""


def quantise_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """[outputs, inputs] in any floating dtype → (int8 [outputs, inputs], what 1 of each output is worth as float32
    [outputs]). `inputs` is a multiple of 16, at most MAX_INPUTS."""
    parts = [quantise_rows(rotate(part.float())) for part in weight.split(_PART)]
    return torch.cat([whole for whole, _ in parts]), torch.cat([scales for _, scales in parts])


def rotate(rows: Tensor) -> Tensor:
    """float32 [rows, numbers], each block of BLOCK numbers (the last ones of a row: 32, then 16) times an
    orthogonal Hadamard matrix. Summed up, then scaled, as native/quantise.cpp does."""
    done, begin, size = [], 0, BLOCK
    while begin < rows.shape[1]:
        while size > rows.shape[1] - begin:
            size //= 2
        end = begin + (rows.shape[1] - begin) // size * size
        blocks = rows[:, begin:end].unflatten(1, (-1, size))
        done.append((blocks @ hadamard(size) * torch.tensor(float(size)).sqrt().reciprocal()).flatten(1))
        begin = end
    return torch.cat(done, dim=1)


def quantise_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """float32 [rows, numbers] → (int8, float32 [rows]); rounds half to even, as native/quantise.cpp does."""
    peaks = rows.abs().amax(dim=1)
    something = ~(peaks <= 1e-30)  # A row with a NaN has that for its scale, and its products say so.
    # A number divided by a tensor would be its reciprocal, rounded, times that number.
    inverses = torch.where(something, torch.full_like(peaks, MOST) / peaks, 0.0)
    whole = (rows * inverses[:, None]).round().to(torch.int8)
    return whole, torch.where(something, peaks / MOST, 0.0)


def hadamard(size: int) -> Tensor:
    """Sylvester's, of 1 and -1, symmetric: float32 [size, size]; `size` is a power of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix
