"""Tensor parallel runners over real processes, without Ray: this one leads, helpers hold the other parts."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from actors.runner.torch.group import LOOPBACK, Meeting, RankGroup, listen
from actors.runner.torch.ranks import Rank
from actors.runner.torch.runner import TorchRunner
from actors.runner.torch.setup import ModelSetup
from tests.runner import tiny

PATIENCE_S = 60.0
DEFAULTS: dict[str, Any] = {"dtype": "float32", "kv_tokens": 4096, "page_size": 16}
OF_THE_MODEL = ("dtype", "page_size", "kv_tokens", "attention")
"""Settings that all ranks need."""


@dataclass(frozen=True)
class Part:
    """What a helper is to be: a rank of a model."""

    folder: Path
    settings: dict[str, Any]
    rank: int
    size: int
    timeout_s: float


def help_out(pipe: Connection) -> None:
    """A helper's life: one model after the other. It says `loaded`, hears where to meet, and says how it ended."""
    torch.set_num_threads(1)
    while (part := pipe.recv()) is not None:
        pipe.send(served(part, pipe))


def served(part: Part, pipe: Connection) -> str:
    try:
        rank = Rank(ModelSetup.of(part.folder, **part.settings), part.rank, part.size)
        pipe.send("loaded")
        rank.obey(Meeting(LOOPBACK, pipe.recv()), part.timeout_s)
    except Exception as error:
        if dist.is_initialized():
            dist.destroy_process_group()
        return f"{type(error).__name__}: {error}"
    return "stopped"


class Helper:
    """A process that is told by a pipe."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=help_out, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def tell(self, what: object) -> None:
        self._pipe.send(what)

    def hear(self, within_s: float = PATIENCE_S) -> str:
        assert self._pipe.poll(within_s), "the helper says nothing"
        said: str = self._pipe.recv()
        return said

    def end(self) -> None:
        if self.process.is_alive():
            self._pipe.send(None)
            self.process.join(PATIENCE_S)


class Helpers:
    """Started when they are first needed, and kept: importing torch takes longer than a test."""

    def __init__(self) -> None:
        self._idle: list[Helper] = []

    def take(self, count: int) -> list[Helper]:
        taken, self._idle = self._idle[:count], self._idle[count:]
        return taken + [Helper() for _ in range(count - len(taken))]

    def give_back(self, helpers: list[Helper]) -> None:
        self._idle += [helper for helper in helpers if helper.process.is_alive()]

    def end(self) -> None:
        for helper in self._idle:
            helper.end()

    @contextmanager
    def runner(self, folder: Path, size: int = 2, timeout_s: float = 20.0, **fields: Any) -> Iterator[TorchRunner]:
        """A runner that leads `size` ranks; at the end they have all been told to stop, and did."""
        helpers = self.take(size - 1)
        try:
            runner, _ = gathered(helpers, folder, size, timeout_s, **fields)
            yield runner
            runner.close()
            assert [helper.hear() for helper in helpers] == ["stopped"] * len(helpers)
        except BaseException:
            for helper in helpers:
                helper.process.kill()
                helper.process.join(PATIENCE_S)
            raise
        finally:
            self.give_back(helpers)


def gathered(
    helpers: list[Helper],
    folder: Path,
    size: int,
    timeout_s: float,
    of_ranks: dict[str, Any] | None = None,
    **fields: Any,
) -> tuple[TorchRunner, list[str]]:
    """A runner that has met its ranks, and a list that gets the reasons for which they are lost. `of_ranks`: settings
    that only the others have."""
    settings = {**DEFAULTS, **fields, **(of_ranks or {})}
    shared = {name: settings[name] for name in OF_THE_MODEL if name in settings}
    for number, helper in enumerate(helpers, 1):
        helper.tell(Part(folder, shared, number, size, timeout_s))
    losses: list[str] = []
    runner = tiny.runner(folder, group=RankGroup(0, size, losses.append), **fields)
    assert [helper.hear() for helper in helpers] == ["loaded"] * len(helpers)
    listening = listen(LOOPBACK)
    port = listening.getsockname()[1]
    for helper in helpers:
        helper.tell(port)
    runner.lead(listening, timeout_s)
    return runner, losses
