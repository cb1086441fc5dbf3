"""x @ W^T + b, with the weight packed for oneDNN where that pays."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear:
    """`weight` [rows, columns], `bias` [rows] or None.

    bf16 weights on CPU are reordered once into oneDNN's blocked layout: plain F.linear packs them anew at every call,
    which at decode sizes costs as much as the product. The plain copy is not kept.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._bias = bias
        self._packed: Tensor | None = None
        self._weight: Tensor | None = weight
        if weight.device.type == "cpu" and weight.dtype is torch.bfloat16 and _onednn_computes_bfloat16():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
            self._weight = None

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
            return out
        if self._weight is None:
            raise AssertionError("a Linear holds its weight in one form")
        return F.linear(x, self._weight, self._bias)


def _onednn_computes_bfloat16() -> bool:
    """Whether oneDNN is built in and this CPU has the AVX512 that its bf16 kernels need."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
