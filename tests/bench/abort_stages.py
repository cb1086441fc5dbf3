"""The stages in which an abort can meet a request: each is brought about, its client leaves, and the worker is watched
until everything of the request is gone."""

from __future__ import annotations

import itertools
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.bench.abort_rig import Rig, Stats, await_token

SLOW_SCHEMA: dict[str, Any] = {"enum": [[number] for number in range(25_000)]}
"""Takes seconds to compile. Another title makes another grammar of it."""
_TITLES = itertools.count()


@dataclass
class Sample:
    """Seconds. `late_s`: from just before the socket was closed until the worker's own figures were seen to be back;
    `look_s`: the longest time between two looks at them meanwhile; `step_s`: of a step just before."""

    late_s: list[float] = field(default_factory=list)
    look_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Sizes:
    """`prompt`: a text that takes many steps to prefill. `max_tokens`: of an answer that does not end by itself.
    `slots`: requests that run at once; one more waits."""

    prompt: str
    max_tokens: int
    slots: int


class Bench:
    """One way to be aborted after the other, on one rig."""

    def __init__(self, rig: Rig, sizes: Sizes, rng: random.Random) -> None:
        self._rig = rig
        self._sizes = sizes
        self._rng = rng

    def stages(self) -> dict[str, Callable[[Sample], None]]:
        return {
            "decode, streamed": lambda sample: self._decode(sample, stream=True),
            "decode, unary": lambda sample: self._decode(sample, stream=False),
            "prefill, streamed": lambda sample: self._prefill(sample, stream=True),
            "prefill, unary": lambda sample: self._prefill(sample, stream=False),
            "waiting, streamed": lambda sample: self._waiting(sample, stream=True),
            "waiting, unary": lambda sample: self._waiting(sample, stream=False),
            "queued in a session, streamed": lambda sample: self._queued(sample, stream=True),
            "queued in a session, unary": lambda sample: self._queued(sample, stream=False),
            "grammar, unary": self._grammar,
        }

    # -- stages ----------------------------------------------------------------------------------------------------

    def _decode(self, sample: Sample, *, stream: bool) -> None:
        connection = self._begin(0, stream=stream)
        if stream:
            await_token(connection)
        else:
            self._rig.until(lambda stats: stats["running"] == 1)
        self._leave(connection, sample, _all_back)

    def _prefill(self, sample: Sample, *, stream: bool) -> None:
        before = self._rig.stats()
        done, output = before["prefill_tokens"], before["output_tokens"]
        connection = self._begin(0, stream=stream, text=self._sizes.prompt)
        self._rig.until(lambda stats: stats["prefill_tokens"] > done)
        self._leave(connection, sample, _all_back)
        if self._rig.stats()["output_tokens"] > output:
            raise RuntimeError("the prompt is too short: its prefill ended before its client left")

    def _waiting(self, sample: Sample, *, stream: bool) -> None:
        with self._running(self._sizes.slots) as others:
            connection = self._begin(others, stream=stream)
            self._rig.until(lambda stats: stats["waiting"] == 1)
            self._leave(connection, sample, lambda stats: stats["waiting"] == 0 and _alive(stats) == others)

    def _queued(self, sample: Sample, *, stream: bool) -> None:
        with self._running(1) as others:
            connection = self._begin(0, stream=stream, on_busy="queue")
            self._rig.until(lambda stats: stats["live"] == others + 1)
            self._leave(connection, sample, lambda stats: _alive(stats) == others)

    def _grammar(self, sample: Sample) -> None:
        """While a grammar is compiled that takes long; another runs, so that there are steps."""
        with self._running(1) as others:
            schema = {**SLOW_SCHEMA, "title": f"grammar {next(_TITLES)}"}
            connection = self._begin(others, stream=False, guided_json=schema, ignore_eos=False)
            self._rig.until(lambda stats: stats["compiling"] == 1)
            self._leave(
                connection,
                sample,
                lambda stats: stats["compiling"] == 0 and stats["tables"]["grammars"] == 0 and _alive(stats) == others,
            )

    # -- inside ----------------------------------------------------------------------------------------------------

    def _begin(
        self, which: int, *, stream: bool, text: str = "count", on_busy: str = "reject", **more: Any
    ) -> socket.socket:
        # A text of its own, so that no prefix of it is there already.
        content = f"{self._rng.random()} {text}"
        fields = {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": self._sizes.max_tokens,
            "stream": stream,
            "ignore_eos": True,
            **more,
        }
        return self._rig.begin(self._rig.sessions[which], fields, on_busy)

    @contextmanager
    def _running(self, count: int) -> Iterator[int]:
        """So many other turns that go on meanwhile, one in each of the first sessions."""
        with ExitStack() as stack:
            for session in range(count):
                await_token(stack.enter_context(self._begin(session, stream=True)))
            yield count

    def _leave(self, connection: socket.socket, sample: Sample, back: Callable[[Stats], bool]) -> None:
        """Watch a few steps, close the socket at a random point of one, and wait until it is as if it never was."""
        then, at = self._rig.stats(), time.monotonic()
        time.sleep(0.02 + self._rng.random() * 0.05)
        self._rig.until(lambda stats: stats["steps"] > then["steps"])
        now = self._rig.stats()
        sample.step_s.append((time.monotonic() - at) / (now["steps"] - then["steps"]))
        time.sleep(self._rng.random() * 0.02)
        closed_at = time.monotonic()
        connection.close()
        freed_at, look_s = self._rig.until(back)
        sample.late_s.append(freed_at - closed_at)
        sample.look_s.append(look_s)


def _all_back(stats: Stats) -> bool:
    return _alive(stats) == 0 and stats["pages"]["request_owned"] == 0


def _alive(stats: Stats) -> int:
    """Requests of which anything is left: an entry, or pages."""
    return max(int(stats["live"]), int(stats["tables"]["unreturned"]))
