"""What runners share that copy pages in and out of their KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from actors.runner.base import RunnerInfo

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Copied(Generic[T]):
    """A copy that was made at once: `PagesRead` or `PagesWritten`."""

    value: T

    def wait(self) -> T:
        return self.value


def check_length(pages: Sequence[int], data: bytes, info: RunnerInfo) -> None:
    """Raises ValueError unless `data` is as long as these pages are."""
    expected = len(pages) * info.page_bytes
    if len(data) != expected:
        raise ValueError(f"{len(data)} bytes for {len(pages)} pages of {info.page_bytes} bytes")
