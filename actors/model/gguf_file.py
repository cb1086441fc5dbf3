"""A `.gguf` file (or all files of a split one) as metadata by name and a stream of tensors."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any, TypeVar

import gguf

from actors.model.errors import ModelUnusable

_SPLIT_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")

T = TypeVar("T")


class GgufFile:
    """Opens the file by memory map; a tensor's data is read when it is touched. Raises ModelUnusable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._readers = [_open(part) for part in split_parts(path)]
        self.architecture = self.need("general.architecture", str)

    def get(self, key: str, kind: type[T], default: T) -> T:
        """A metadata value, `default` if there is none. `{arch}` in the key stands for the architecture."""
        value = self._value(key)
        return default if value is None else self._checked(key, value, kind)

    def need(self, key: str, kind: type[T]) -> T:
        """A metadata value that must be there."""
        value = self._value(key)
        if value is None:
            raise ModelUnusable(f"{self.path}: the GGUF file has no metadata {self._full(key)!r}")
        return self._checked(key, value, kind)

    def tensors(self) -> list[gguf.ReaderTensor]:
        """All tensors of all parts. `data` rows are dim 0 of the matrix; quantised rows are bytes."""
        return [tensor for reader in self._readers for tensor in reader.tensors]

    def tensor_names(self) -> set[str]:
        return {tensor.name for tensor in self.tensors()}

    def _full(self, key: str) -> str:
        return key.replace("{arch}", self.architecture) if "{arch}" in key else key

    def _value(self, key: str) -> Any:
        field = self._readers[0].fields.get(self._full(key))
        return None if field is None else field.contents()

    def _checked(self, key: str, value: Any, kind: type[T]) -> T:
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind):
            raise ModelUnusable(f"{self.path}: metadata {self._full(key)!r} is {value!r}, not {kind.__name__}")
        return value


def _open(path: Path) -> gguf.GGUFReader:
    try:
        return gguf.GGUFReader(path)
    except OSError as error:
        raise ModelUnusable(f"{path}: cannot be read: {error}") from error
    except (ValueError, IndexError, KeyError, struct.error, UnicodeDecodeError) as error:
        raise ModelUnusable(f"{path}: not a complete GGUF file: {error}") from error


def split_parts(path: Path) -> list[Path]:
    """The files that make up a model, first part first (its metadata describe the model). Raises ModelUnusable."""
    match = _SPLIT_NAME.match(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    parts = [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelUnusable(f"{path}: parts of the split model are missing: {', '.join(missing)}")
    return parts
