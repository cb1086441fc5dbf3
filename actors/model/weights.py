"""Tensors of a Hugging Face folder, read one at a time from memory-mapped safetensors shards."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from actors.model.errors import ModelUnusable

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_NOT_WEIGHTS = "rotary_emb.inv_freq"
"""A buffer that old checkpoints hold and that config.json determines."""


class Weights:
    """A context manager over all shards. `take` hands out tensors by name; `finish` says what nobody took.

    A tensor that is in the file as asked for stays a view of the file: its memory is the page cache's, shared by all
    processes that serve the model. The files must not change while it is in use.
    """

    def __init__(self, folder: str | os.PathLike[str], dtype: torch.dtype) -> None:
        self._folder = Path(folder)
        self._dtype = dtype
        self._files: dict[Path, Any] = {}
        self._where = self._index()
        self._left = set(self._where)

    def __enter__(self) -> Weights:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()

    def has(self, name: str) -> bool:
        return name in self._where

    def take(
        self, name: str, shape: tuple[int, ...], rows: slice = slice(None), columns: slice = slice(None)
    ) -> torch.Tensor:
        """A tensor of that shape, or these rows and columns of it, in the dtype asked for at construction. What is not
        asked for takes no memory. Raises ModelUnusable if it is missing, misshapen, or quantised (its numbers would
        mean nothing without their scales)."""
        if name not in self._where:
            raise ModelUnusable(f"{self._folder} has no tensor {name!r}")
        self._left.discard(name)
        shard = self._where[name]
        try:
            tensor: torch.Tensor = self._open(shard).get_tensor(name)
        except SafetensorError as error:
            raise ModelUnusable(f"tensor {name!r} cannot be read from {shard}: {error}") from error
        if tuple(tensor.shape) != shape:
            raise ModelUnusable(f"tensor {name!r} is {tuple(tensor.shape)}; config.json says {shape}")
        if tensor.dtype not in _FLOATS:
            raise ModelUnusable(f"tensor {name!r} is {tensor.dtype}: quantised weights are not supported")
        part = tensor[rows] if columns == slice(None) else tensor[rows, columns]
        return part.to(self._dtype).contiguous()

    def finish(self) -> None:
        """Raise ModelUnusable if the folder holds tensors that the model has no place for."""
        left = sorted(name for name in self._left if not name.endswith(_NOT_WEIGHTS))
        if left:
            raise ModelUnusable(f"{self._folder} holds {len(left)} tensors this model has no place for: {left[:5]}")

    def _index(self) -> dict[str, Path]:
        """Tensor name → shard: what the index says, else `model.safetensors`, else every shard there is."""
        index = self._folder / "model.safetensors.index.json"
        if index.is_file():
            try:
                mapping: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
                return {name: self._folder / shard for name, shard in mapping.items()}
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise ModelUnusable(f"{index} is not an index of tensors: {error!r}") from error
        single = self._folder / "model.safetensors"
        shards = [single] if single.is_file() else sorted(self._folder.glob("*.safetensors"))
        return {name: shard for shard in shards for name in self._open(shard).keys()}  # noqa: SIM118 - not a dict

    def _open(self, shard: Path) -> Any:
        if shard not in self._files:
            try:
                self._files[shard] = safe_open(shard, framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise ModelUnusable(f"{shard} cannot be read: {error}") from error
        return self._files[shard]
