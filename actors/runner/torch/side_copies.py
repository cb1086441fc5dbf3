"""KV pages between a GPU and the host, beside the steps: on a stream of their own, from and to pinned memory.

The thread that launches steps only hands the copies over; whoever wants the pages waits, for an event. Two orders
matter, and both are kept on the device, where nobody waits for them:

- a copy begins after everything that the computing stream was given before it: it sees what those steps wrote, and
  does not write where they read;
- a step begins after the copies that it could disturb: those into pages that it names, and those out of pages that it
  writes to. The engine names no such page before the copy has been waited for, so that this costs nothing as a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from actors.runner.torch.pages import check_pages, gather_into, page_shape, scatter
from kernels.attention import AttnBatch


class Mark(Protocol):
    """The end of a copy; a CUDA event is one."""

    def query(self) -> bool:
        """Whether it is over."""

    def synchronize(self) -> None:
        """Wait until it is. From any thread, more than once if need be."""


class Streams(Protocol):
    """The computing stream of the thread that calls, and one beside it. CUDA's, or one that tests can look into."""

    def beside(self, work: Callable[[], None]) -> Mark:
        """Give `work` to the copying stream, to begin when all is done that the computing stream has been given."""

    def after(self, mark: Mark) -> None:
        """What the computing stream is given from now on begins after this."""


class CudaStreams:
    """Implements `Streams`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)

    def beside(self, work: Callable[[], None]) -> Mark:
        self._side.wait_stream(torch.cuda.current_stream(self._device))
        # Memory that `work` allocates is the copying stream's: who gets it next comes after on that stream.
        with torch.cuda.stream(self._side):
            try:
                work()
            except BaseException:
                self._side.synchronize()  # Half a copy is nobody's to wait for.
                raise
            event = torch.cuda.Event(blocking=True)  # Who waits leaves the core to others.
            event.record(self._side)
        return event

    def after(self, mark: Mark) -> None:
        if not isinstance(mark, torch.cuda.Event):
            raise AssertionError("a mark of other streams")
        torch.cuda.current_stream(self._device).wait_event(mark)


@dataclass(frozen=True, slots=True)
class _Copy:
    pages: frozenset[int]
    inwards: bool
    end: Mark


class SideCopies:
    """Of one cache, kv: [num_layers, 2, num_pages, page_size, num_kv_heads, head_dim]. All but `room` and `pinned` is
    called on the thread that launches steps."""

    def __init__(self, kv: Tensor, streams: Streams, overwritten: Callable[[Sequence[int]], None]) -> None:
        """`overwritten` is told which pages get a new content."""
        self._kv = kv
        self._streams = streams
        self._overwritten = overwritten
        self._under_way: list[_Copy] = []

    def room(self, num_pages: int) -> Tensor:
        """Host memory for so many pages: [num_pages, *page_shape(kv)]. Asking the system for pinned memory takes its
        time: not on the thread that launches."""
        shape = (num_pages, *page_shape(self._kv))
        return torch.empty(shape, dtype=self._kv.dtype, pin_memory=self._kv.device.type == "cuda")

    def pinned(self, values: Tensor) -> Tensor:
        """The same numbers in memory that a GPU can copy from on its own; elsewhere as they are."""
        return values.pin_memory() if self._kv.device.type == "cuda" else values

    def begin_read(self, pages: Sequence[int], host: Tensor) -> Mark:
        """Copy pages to `host`, a `room`, which nobody may touch before the mark. Raises IndexError."""

        def work() -> None:
            # Together first, on the device: page by page over the bus would be as many small copies as layers.
            together = torch.empty(host.shape, dtype=host.dtype, device=self._kv.device)
            host.copy_(gather_into(together, self._kv, pages), non_blocking=True)

        return self._begin(pages, False, work)

    def begin_write(self, pages: Sequence[int], values: Tensor) -> Mark:
        """Put `values`, flat and `pinned`, into pages; nobody may change them before the mark. Raises IndexError."""

        def work() -> None:
            scatter(self._kv, pages, values.to(self._kv.device, non_blocking=True))

        mark = self._begin(pages, True, work)
        self._overwritten(pages)
        return mark

    def _begin(self, pages: Sequence[int], inwards: bool, work: Callable[[], None]) -> Mark:
        check_pages(self._kv, pages)
        self._forget()
        mark = self._streams.beside(work)
        self._under_way.append(_Copy(frozenset(pages), inwards, mark))
        return mark

    def before(self, batch: AttnBatch) -> None:
        """A step of this batch, its page table and slots on the host, is about to be launched."""
        if not self._under_way:
            return
        self._forget()
        named = set(batch.page_table.unique().tolist())
        written = set((batch.slots // self._kv.shape[3]).unique().tolist())
        for copy in self._under_way:
            if not copy.pages.isdisjoint(named if copy.inwards else written):
                self._streams.after(copy.end)

    def _forget(self) -> None:
        self._under_way = [copy for copy in self._under_way if not copy.end.query()]

    def close(self) -> None:
        """Wait for all of them: their memory is about to go."""
        for copy in self._under_way:
            copy.end.synchronize()
        self._under_way = []


class PagesLeaving:
    """Implements `PagesRead`."""

    def __init__(self, begun: Future[Mark], host: Tensor) -> None:
        self._begun = begun
        self._host = host

    def wait(self) -> bytes:
        self._begun.result().synchronize()
        return self._host.flatten().view(torch.uint8).numpy().tobytes()


class PagesComing:
    """Implements `PagesWritten`. Keeps what is copied until it is there."""

    def __init__(self, begun: Future[Mark], values: Tensor) -> None:
        self._begun = begun
        self._values = values

    def wait(self) -> None:
        self._begun.result().synchronize()
