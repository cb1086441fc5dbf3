"""The ranks of one tensor parallel worker, and what they do together.

There are two channels, since they are waited for differently. On the *work* channel (nccl between GPUs, gloo between
CPUs) all ranks are in the middle of the same step: who has not come after `timeout_s` is lost. On the *control* channel
(gloo) the other ranks wait for what the first tells them, for days if need be: they sleep in the kernel meanwhile, and
hear of the first one's death by its socket. Who tells does not wait for longer than `timeout_s`.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from actors.model.errors import ModelUnusable
from actors.runner.torch.shards import length, part_of

logger = logging.getLogger("remora.runner")

LOOPBACK = "127.0.0.1"
_MEETING_S = 60.0
"""How long ranks that have loaded the model may take to find each other."""
_FOR_EVER = timedelta(days=365)
_FIRST = 1024
"""Numbers that a message has room for before it takes a second one."""


class Peers(Protocol):
    """What the decoder needs of the others that hold parts of the model."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def add_up(self, partial: Tensor) -> Tensor:
        """The sum over all ranks, at all of them."""

    def join_columns(self, part: Tensor, total: int) -> Tensor:
        """[rows, total] at the first rank, out of what `part_of` gives each; elsewhere the part."""


class Alone:
    """All of the model is here."""

    rank, size = 0, 1

    def add_up(self, partial: Tensor) -> Tensor:
        return partial

    def join_columns(self, part: Tensor, total: int) -> Tensor:
        return part


ALONE = Alone()


class RanksLost(RuntimeError):
    """The ranks can do nothing together any more."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks find each other: the first one listens there."""

    host: str
    port: int


class RankGroup:
    """Implements `Peers`. `connect` before anything else; then all ranks make the same calls in the same order.

    `lost(why)` is called, once, when the first rank finds that the others are gone or out of step.
    """

    def __init__(self, rank: int, size: int, lost: Callable[[str], None] | None = None) -> None:
        self.rank, self.size = rank, size
        self.connected = False
        self._lost = lost or (lambda why: logger.error("ranks lost: %s", why))
        self._broken = ""
        self._reduces = False
        self._timeout = _FOR_EVER
        self._control: dist.ProcessGroup | None = None
        self._pages: dist.ProcessGroup | None = None

    # -- meeting ---------------------------------------------------------------------------------------------------

    def connect(self, meeting: Meeting | socket.socket, device: torch.device, timeout_s: float, identity: str) -> None:
        """Meet the others. The first rank gives the socket that it listens with (see `listen`).

        Raises ModelUnusable when ranks differ in `identity`, RuntimeError when they do not come.
        """
        patience = timedelta(seconds=_MEETING_S)
        if isinstance(meeting, socket.socket):
            host, port = meeting.getsockname()[:2]
            descriptor = meeting.detach()
        else:
            host, port, descriptor = meeting.host, meeting.port, None
        if host == LOOPBACK:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store = dist.TCPStore(
            host,
            port,
            self.size,
            is_master=descriptor is not None,
            timeout=patience,
            wait_for_workers=False,
            master_listen_fd=descriptor,
        )
        self._agree(store, identity)
        on_gpu = device.type == "cuda"
        self._timeout = timeout = timedelta(seconds=timeout_s)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", store=store, rank=self.rank, world_size=self.size, timeout=timeout
        )
        self._pages = dist.new_group(backend="gloo", timeout=timeout) if on_gpu else None
        self._control = dist.new_group(backend="gloo", timeout=_FOR_EVER)
        self._reduces = on_gpu
        self.connected = True

    def _agree(self, store: dist.Store, identity: str) -> None:
        """All have the same weights, numbers and cache, or nothing begins."""
        store.set(f"identity {self.rank}", identity)
        for rank in range(self.size):
            theirs = store.get(f"identity {rank}").decode()
            if theirs != identity:
                raise ModelUnusable(f"rank {rank} has {theirs}; rank {self.rank} has {identity}")

    def close(self) -> None:
        """A group that is broken is left as it is: a thread of it may wait for a rank that never comes."""
        if self.connected and not self._broken:
            self.connected = False
            self._control = self._pages = None
            dist.destroy_process_group()

    # -- in a step -------------------------------------------------------------------------------------------------

    def add_up(self, partial: Tensor) -> Tensor:
        """On CPU the parts are added in the order of ranks and in float32: the sum does not depend on where in the
        batch a row is, which a ring's does (rule I3), and comes sooner where parts are small."""
        partial = partial.contiguous()
        if self._reduces:
            dist.all_reduce(partial)
            return partial
        parts = list(torch.empty((self.size, *partial.shape), dtype=partial.dtype).unbind())
        dist.all_gather([_plain(part) for part in parts], _plain(partial))
        total = parts[0].float()
        for part in parts[1:]:
            total += part
        return total.to(partial.dtype)

    def join_columns(self, part: Tensor, total: int) -> Tensor:
        if not len(part):
            return part if self.rank else part.new_empty((0, total))
        widest = -(-total // self.size)  # A gather wants equal sizes.
        sent = F.pad(part, (0, widest - part.shape[1])).contiguous()
        if self.rank:
            dist.gather(_plain(sent), dst=0)
            return part
        parts = list(torch.empty((self.size, *sent.shape), dtype=sent.dtype, device=sent.device).unbind())
        dist.gather(_plain(sent), [_plain(each) for each in parts], dst=0)
        widths = [length(part_of(total, rank, self.size)) for rank in range(self.size)]
        return torch.cat([each[:, :width] for each, width in zip(parts, widths, strict=True)], dim=1)

    # -- between steps ---------------------------------------------------------------------------------------------

    def tell(self, message: np.ndarray) -> None:
        """Send int32 numbers to all others. The first rank's."""
        first = torch.zeros(_FIRST, dtype=torch.int32)
        first[0] = len(message)
        head = message[: _FIRST - 1]
        first[1 : len(head) + 1] = torch.from_numpy(head)
        self._send(first)
        if len(message) > len(head):
            self._send(torch.from_numpy(message[len(head) :].copy()))

    def _send(self, numbers: Tensor) -> None:
        """Gloo hands nothing over before it is asked for, so that this waits for the others to have come back."""
        dist.broadcast(numbers, 0, group=self._control, async_op=True).wait(self._timeout)

    def hear(self) -> np.ndarray:
        """Wait for what the first rank tells. Raises RuntimeError when it has ended."""
        first = torch.empty(_FIRST, dtype=torch.int32)
        dist.broadcast(first, 0, group=self._control)
        size = int(first[0])
        head = first[1 : min(size, _FIRST - 1) + 1]
        if size == len(head):
            return head.numpy()
        rest = torch.empty(size - len(head), dtype=torch.int32)
        dist.broadcast(rest, 0, group=self._control)
        return torch.cat((head, rest)).numpy()

    def gather(self, part: Tensor) -> list[Tensor]:
        """Equally long flat CPU tensors, one from each rank, at the first."""
        parts = [torch.empty_like(part) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(_plain(part), None if parts is None else [_plain(p) for p in parts], dst=0, group=self._pages)
        return parts or []

    def scatter(self, parts: list[Tensor]) -> None:
        """The inverse of `gather`: each other rank gets its part by `receive`. The first rank's."""
        dist.scatter(_plain(torch.empty_like(parts[0])), [_plain(part) for part in parts], src=0, group=self._pages)

    def receive(self, size: int, dtype: torch.dtype) -> Tensor:
        part = torch.empty(size, dtype=dtype)
        dist.scatter(_plain(part), src=0, group=self._pages)
        return part

    @contextmanager
    def together(self) -> Iterator[None]:
        """Around what the first rank does with the others: whatever fails in between leaves them out of step, and the
        only way on is to start anew. Raises RanksLost."""
        if self._broken:
            raise RanksLost(self._broken)
        try:
            yield
        except Exception as error:
            self._broken = f"{type(error).__name__}: {error}".splitlines()[0]
            self._lost(self._broken)
            raise RanksLost(self._broken) from error


def listen(host: str) -> socket.socket:
    """A socket of the first rank's, on a free port, for `connect`."""
    return socket.create_server((host, 0))


def _plain(tensor: Tensor) -> Tensor:
    """The same memory as bytes: not every gloo knows every dtype."""
    return tensor.view(torch.uint8)
