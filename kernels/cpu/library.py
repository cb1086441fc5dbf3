"""The operator's C interface (native/model.h, native/step.cpp), for ctypes: calls let go of the GIL."""

from __future__ import annotations

import ctypes
import struct
from array import array
from ctypes import POINTER, c_bool, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np

from kernels.cpu.build import LIBRARIES, file_name, made_from, sources
from kernels.cpu.variants import VARIANTS, Variant, cpu_flags, runnable

PARTS = ("norms", "qkv", "rope", "attention", "output", "gate_up", "down", "head", "sample")
"""What `Library.times` tells the seconds of."""


class Shape(ctypes.Structure):
    """`RemoraShape`."""

    _fields_ = [
        *((name, c_int32) for name in ("hidden", "inner", "layers", "heads", "kv_heads", "head_dim", "vocab")),
        *((name, c_int32) for name in ("page_size", "num_pages")),
        *((name, c_float) for name in ("norm_eps", "score_scale", "rope_factor")),
    ]


class Matrix(ctypes.Structure):
    """`RemoraMatrix`. Addresses; null where the matrix has no such thing."""

    _fields_ = [(name, c_void_p) for name in ("panels", "bias", "scales")]


class Layer(ctypes.Structure):
    """`RemoraLayer`. Addresses of norms; null where the model has no such thing."""

    _fields_ = [
        *((name, Matrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, c_void_p) for name in ("input_norm", "post_norm", "q_norm", "k_norm")),
    ]


class Ends(ctypes.Structure):
    """What comes before and after the layers in `RemoraWeights`. Addresses."""

    _fields_ = [("embedding", c_void_p), ("head", Matrix), *((name, c_void_p) for name in ("norm", "inverse"))]


class Weights(ctypes.Structure):
    """`RemoraWeights`. It begins as `Ends` does."""

    _fields_ = [
        *Ends._fields_,
        ("layers", POINTER(Layer)),
        ("kv", c_void_p),
    ]


class Batch(ctypes.Structure):
    """`RemoraBatch`."""

    _fields_ = [
        *((name, c_int32) for name in ("rows", "tokens", "num_wanted", "table_width", "num_draws")),
        *((name, c_void_p) for name in ("token_ids", "q_lens", "kv_lens", "pages", "wanted", "logits")),
        ("draws", c_char_p),
        ("chosen", c_void_p),
    ]


DRAW = struct.Struct("4d3q")
"""`RemoraDraw`: temperature, top_p, min_p, number; top_k, off (an address), num_off."""


class Library:
    """One variant, loaded."""

    def __init__(self, variant: Variant, path: Path) -> None:
        """Raises OSError for what cannot be loaded here."""
        self.variant = variant
        library = ctypes.CDLL(str(path))
        self.open = library.remora_open
        self.open.restype, self.open.argtypes = c_void_p, [POINTER(Shape), POINTER(Weights), c_int32]
        self.step = library.remora_step
        self.step.restype, self.step.argtypes = c_char_p, [c_void_p, POINTER(Shape), POINTER(Batch)]
        self.close = library.remora_close
        self.close.restype, self.close.argtypes = None, [c_void_p]
        self.product = library.remora_product
        self.product.restype = c_bool
        self.product.argtypes = [c_void_p, c_int32, POINTER(Matrix), c_int32, c_int32, c_void_p, c_int32, c_int32]
        self.repeats = library.remora_repeats
        self.repeats.restype, self.repeats.argtypes = c_int64, [c_void_p]
        self._choose = library.remora_choose
        self._choose.restype, self._choose.argtypes = c_char_p, [c_void_p, c_int32, c_int32, c_char_p, c_void_p]
        self._times = library.remora_times
        self._times.restype, self._times.argtypes = POINTER(c_double), [c_void_p]

    def choose(self, logits: np.ndarray, draws: bytes) -> list[int]:
        """One token for each row of logits, -1 for one that is not finite. logits: float32 [rows, vocab];
        draws: a DRAW for each, of no negative temperature."""
        if logits.dtype != np.float32 or not logits.flags.c_contiguous or len(draws) != len(logits) * DRAW.size:
            raise ValueError("rows of float32 in one piece are wanted, and a draw for each")
        rows, vocab = logits.shape
        chosen = array("q", [-1] * rows)
        why = self._choose(logits.ctypes.data, vocab, rows, draws, chosen.buffer_info()[0])
        if why:
            raise MemoryError(why.decode())
        return chosen.tolist()

    def times(self, decoder: int) -> dict[str, float]:
        """Seconds that the first thread has spent on each part of all steps so far, its waiting for others included."""
        return dict(zip(PARTS, self._times(decoder)[: len(PARTS)], strict=True))


@cache
def load(dtype: str, variant: str = "", quantization: str = "") -> Library | str:
    """The fastest build for `dtype` (or the one named) that this CPU runs, or why there is none. `quantization`: of the
    weights, "" or "int8"."""
    flags = cpu_flags()
    candidates = [each for each in runnable(dtype, flags) if variant in ("", each.name)]
    if not candidates:
        needs = " or ".join(", ".join(sorted(each.needs)) for each in VARIANTS if each.dtype == dtype)
        return f"no build computes {dtype} on this CPU" + (f": it lacks some of {needs}" if needs else "")
    if quantization:
        lacking = sorted(set().union(*(each.int8_needs for each in candidates)) - flags)
        candidates = [each for each in candidates if each.int8_needs <= flags]
        if not candidates:
            lacks = ", ".join(lacking)
            return f"no build multiplies {quantization} weights beside {dtype} on this CPU: it lacks {lacks}"
    here = sources()
    reasons = []
    for each in candidates:
        path = LIBRARIES / file_name(each)
        made = made_from(path)
        if not made:
            reasons.append(f"{each.name} is not built (`python -m kernels.cpu.build`)")
        elif here and made != here:
            reasons.append(f"{each.name} was built from other sources (`python -m kernels.cpu.build`)")
        else:
            try:
                return Library(each, path)
            except OSError as error:
                reasons.append(f"{each.name} cannot be loaded: {error}")
    return "; ".join(reasons)
