"""A worker with sessions that talk, for tests of hibernation."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path

from actors.messages import (
    CloseSession,
    Event,
    Finished,
    GetSession,
    Outcome,
    SamplingParams,
    SessionInfo,
    SessionMode,
    Submit,
    Tokens,
    TurnOf,
)
from actors.records import SessionRecord
from actors.runner.base import ModelRunner
from actors.runner.toy import toy_continuation
from actors.worker.shell import WorkerShell
from cluster.store.sqlite import SqliteStore
from configs import EngineConfig, HibernateConfig, RemoraConfig

OUTPUT = 9


class Conversations:
    """Sessions of one worker, each with its history. A turn that ended is waited for until its KV has a copy."""

    def __init__(self, folder: Path, runner: ModelRunner, hibernate: HibernateConfig, depth: int) -> None:
        engine = EngineConfig(max_step_tokens=64, depth=depth, check_invariants=True)
        self.store = SqliteStore(str(folder / "sessions.sqlite"))
        self.shell = WorkerShell("w1", RemoraConfig(engine=engine, hibernate=hibernate), runner, self.store)
        self.shell.start()
        self.vocab = min(runner.info.vocab_size, 256)
        self.page = runner.info.page_size
        self.records: dict[str, SessionRecord] = {}
        self.history: dict[str, list[int]] = {}
        self.prompts: dict[str, list[int]] = {}
        self._numbers = itertools.count()
        self._random = random.Random(7)

    def open(self, *names: str) -> None:
        for name in names:
            self.history[name] = []
            self.records[name] = self.store.create(
                "default",
                name,
                owner="w1",
                mode=SessionMode.STREAMING,
                idle_timeout_s=None,
                capacity_tokens=None,
                now=0.0,
            )

    def submit(self, name: str, size: int = 21) -> str:
        record, key = self.records[name], f"r{next(self._numbers)}"
        prompt = self._random.choices(range(3, self.vocab), k=size)
        self.prompts[key] = self.history[name] + prompt
        turn = TurnOf(session_id=name, generation=record.generation, epoch=record.epoch)
        sampling = SamplingParams(max_tokens=OUTPUT, ignore_eos=True)
        self.shell.submit(
            Submit(
                key=key, rid=key, ingress="i", tenant="default", input_ids=tuple(prompt), sampling=sampling, turn=turn
            )
        )
        return key

    def turns(self, *names: str) -> dict[str, Finished]:
        """One turn of each, all at once. Their outputs are in `history`."""
        keys = {name: self.submit(name) for name in names}
        heard = asyncio.run(_hear(self.shell, set(keys.values())))
        ends = {}
        for name, key in keys.items():
            output = [token for event in heard[key] if isinstance(event, Tokens) for token in event.ids]
            end = heard[key][-1]
            assert isinstance(end, Finished)
            assert (end.outcome, len(output)) == (Outcome.LENGTH, OUTPUT), end
            self.history[name] = self.prompts[key] + output
            ends[name] = end
        return ends

    def turn(self, name: str) -> Finished:
        return self.turns(name)[name]

    def outputs_are_right(self, *names: str) -> bool:
        """As the toy answers without any cache."""
        return all(
            self.history[name][-OUTPUT:] == toy_continuation(self.history[name][:-OUTPUT], OUTPUT) for name in names
        )

    def kept(self, name: str) -> int:
        """Tokens of full pages whose KV was computed: all but the last token's."""
        return max(0, len(self.history[name]) - 1) // self.page * self.page

    def info(self, name: str) -> SessionInfo:
        answer = self.shell.ask(GetSession(tenant="default", session_id=name)).result(60)
        assert isinstance(answer, SessionInfo)
        return answer

    def sleep(self, *names: str) -> None:
        """Until there are copies of all they have."""
        until(lambda: all(self.info(name).hibernated_tokens == self.kept(name) for name in names))

    def figures(self) -> dict[str, int]:
        row = self.shell.stats()["hibernate"]
        assert isinstance(row, dict)
        return row

    def close(self, *names: str) -> None:
        for name in names:
            ask = CloseSession(tenant="default", session_id=name, generation=self.records[name].generation)
            self.shell.ask(ask).result(60)

    def nothing_is_left(self) -> bool:
        figures, pages = self.figures(), self.shell.stats()["pages"]
        assert isinstance(pages, dict)
        held = [figures[name] for name in ("images", "host_bytes", "host_pages", "disk_bytes", "disk_pages")]
        return not any(held) and pages["free"] + pages["prefix_only"] == pages["total"]


async def _hear(shell: WorkerShell, keys: set[str]) -> dict[str, list[Event]]:
    heard: dict[str, list[Event]] = {key: [] for key in keys}
    left = set(keys)
    while left:
        for event in await shell.poll("i"):
            assert isinstance(event, (Tokens, Finished))
            heard[event.key].append(event)
            if isinstance(event, Finished):
                left.discard(event.key)
    return heard


def until(holds: Callable[[], bool], within_s: float = 15.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.002)
