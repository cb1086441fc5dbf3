"""Rotary position embeddings (Su et al. 2021) and their long-context variants, as Hugging Face computes them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from actors.model.card import Rope


def frequencies(rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """(inverse frequencies float32 [head_dim / 2], factor on cos and sin).

    `dynamic` (NTK-aware) equals `default` up to the length the model was trained for, and a model's context is never
    longer than that here: cached KV could not be rotated anew.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return plain / rope.parameters["factor"], 1.0
    if rope.kind == "llama3":
        return _llama3(plain, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(plain, rope, head_dim)
    return plain, 1.0


def rotation(positions: Tensor, inverse: Tensor, factor: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin, each [num_tokens, 1, head_dim / 2] in `dtype`, for int64 positions [num_tokens]."""
    angles = positions.float()[:, None, None] * inverse
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [num_tokens, heads, head_dim]: the pair of component i is i + head_dim / 2."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _llama3(plain: Tensor, rope: Rope) -> Tensor:
    """Llama 3.1: long wavelengths are divided by `factor`, short ones kept, those between blended."""
    parameters = rope.parameters
    factor, original = parameters["factor"], parameters["original_max_position_embeddings"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    wavelength = 2 * math.pi / plain
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * plain / factor + smooth * plain
    stretched = torch.where(wavelength > original / low, plain / factor, plain)
    between = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(between, blended, stretched)


def _yarn(plain: Tensor, rope: Rope, head_dim: int) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023): interpolate slow components, extrapolate fast ones, with a ramp between."""
    parameters = rope.parameters
    factor, original = parameters["factor"], parameters["original_max_position_embeddings"]
    fast, slow = parameters.get("beta_fast") or 32.0, parameters.get("beta_slow") or 1.0

    def dimension(rotations: float) -> float:
        return head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(fast), dimension(slow)
    if parameters.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    inverse = plain / factor * ramp + plain * (1 - ramp)
    return inverse, _yarn_factor(parameters.get("attention_factor"), factor, rope)


def _yarn_factor(given: float | None, factor: float, rope: Rope) -> float:
    if given is not None:
        return given

    def mscale(scale: float, m: float = 1.0) -> float:
        return 1.0 if scale <= 1 else 0.1 * m * math.log(scale) + 1.0

    numerator, denominator = rope.parameters.get("mscale"), rope.parameters.get("mscale_all_dim")
    if numerator and denominator:
        return mscale(factor, numerator) / mscale(factor, denominator)
    return mscale(factor)
