"""Tensors of a Hugging Face folder, read one at a time from memory-mapped safetensors shards."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import safe_open

from actors.model.errors import ModelUnusable


class Weights:
    """A context manager over all shards. `take` hands out each tensor once; `finish` says what nobody took."""

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

    def take(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor in the dtype asked for at construction. Raises ModelUnusable if it is missing or misshapen."""
        if name not in self._where:
            raise ModelUnusable(f"{self._folder} has no tensor {name!r}")
        self._left.discard(name)
        tensor: torch.Tensor = self._open(self._where[name]).get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelUnusable(f"tensor {name!r} is {tuple(tensor.shape)}; config.json says {shape}")
        return tensor.to(self._dtype)

    def finish(self) -> None:
        """Raise ModelUnusable if the folder holds tensors that the model has no place for."""
        left = sorted(name for name in self._left if not name.endswith(("rotary_emb.inv_freq", "lm_head.weight")))
        if left:
            raise ModelUnusable(f"{self._folder} holds {len(left)} tensors this model has no place for: {left[:5]}")

    def _index(self) -> dict[str, Path]:
        index = self._folder / "model.safetensors.index.json"
        if index.is_file():
            mapping = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return {name: self._folder / shard for name, shard in mapping.items()}
        shards = sorted(self._folder.glob("*.safetensors"))
        return {name: shard for shard in shards for name in self._open(shard).keys()}  # noqa: SIM118 - not a dict

    def _open(self, shard: Path) -> Any:
        if shard not in self._files:
            try:
                self._files[shard] = safe_open(shard, framework="pt", device="cpu")
            except (OSError, ValueError) as error:
                raise ModelUnusable(f"{shard} cannot be read: {error}") from error
        return self._files[shard]
