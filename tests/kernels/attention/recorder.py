"""What a CUDA graph does, on a CPU: it remembers operations with the memory they worked on, and does them again.

Nothing of Python runs at a replay: a number that the host knew at the capture is baked in, and a tensor that was made
anew since is not looked at. So what would go wrong with a real graph goes wrong with this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from kernels.triton_paged import launch as launching


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], None]] = []
        self.held: list[Any] = []
        self.made: set[int] = set()
        self.read: set[int] = set()

    def heard(self, given: Sequence[Tensor], results: Sequence[Tensor] = ()) -> None:
        """Note whose memory this is: a graph's own, or that of somebody who has to keep it."""
        self.read |= {_memory(item) for item in given if item.numel()} - self.made
        self.made |= {_memory(item) for item in results} - self.read

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(function)
        assert "_local_scalar_dense" not in name, "a graph cannot wait for a number"
        out = function(*args, **kwargs)
        results = [item for item in tree_flatten(out)[0] if isinstance(item, Tensor)]
        given = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, Tensor)]
        self.held += [results, given]
        self.heard(given, results)
        aliases = {item.untyped_storage().data_ptr() for item in given if item.numel()}
        if all(item.untyped_storage().data_ptr() in aliases or not item.numel() for item in results):
            if function._schema.is_mutable:
                self.steps.append(lambda: function(*args, **kwargs))
        else:
            self.steps.append(lambda: _again(function, args, kwargs, results))
        return out


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _again(function: Any, args: Any, kwargs: Any, results: list[Tensor]) -> None:
    fresh = [item for item in tree_flatten(function(*args, **kwargs))[0] if isinstance(item, Tensor)]
    for old, new in zip(results, fresh, strict=True):
        if "empty" not in str(function):  # Fresh memory has no content to be put back.
            old.copy_(new)


class Recorder:
    """A `Capturer` (see `actors.runner.torch.graphs`) for CPUs. `patch` lets it hear of Triton's launches too."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.captures = 0
        self.replays = 0
        self.read: set[int] = set()
        """Addresses of the memory that captured work reads or writes and did not allocate: a real graph keeps none."""
        self._now: _Recording | None = None
        original = launching.launch

        def heard(kernel: Any, grid: Any, device: Any, *args: Any, **meta: Any) -> None:
            with torch.utils._python_dispatch._disable_current_modes():
                original(kernel, grid, device, *args, **meta)
            if self._now is not None:
                self._now.held.append(args)
                self._now.heard([item for item in args if isinstance(item, Tensor)])
                self._now.steps.append(lambda: original(kernel, grid, device, *args, **meta))

        patch.setattr(launching, "launch", heard)

    def capture(self, work: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
        """Do `work` once; its result, and what does it again into the same memory."""
        self.captures += 1
        with torch.inference_mode(False), torch.no_grad(), _Recording() as recording:
            self._now = recording
            try:
                result = work()
            finally:
                self._now = None
        self.read |= recording.read

        def replay() -> None:
            self.replays += 1
            with torch.no_grad():
                for step in recording.steps:
                    step()

        return result, replay
