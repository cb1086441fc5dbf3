"""`python -m tests.bench turns`: what a turn costs the worker's bookkeeping as its session grows longer.

Sessions take their turns side by side, each with so many new tokens and so many tokens of output. There is no model:
what is left is what a worker does for a turn besides computing it (its message, the engine, the record for the store),
on this thread's CPU clock. All of it must follow from what is new. What still grows is copies of page tables, a few
bytes per page: the bound is a thousandth of what such a turn takes where a step takes 10 ms.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from actors.engine.core import Output
from actors.engine.effects import StoreTurn, TurnStored
from actors.engine.engine import Engine
from actors.engine.settings import EngineSettings
from actors.messages import Finished, OpenSession, Outcome, SamplingParams, SessionMode, Submit, TurnOf
from actors.process import settle_garbage
from actors.wire import decode, encode
from tests.bench.engine_step import made_up

SESSIONS, TURNS, NEW_TOKENS, OUTPUT_TOKENS = 8, 150, 200, 64
COMPARED = 10
"""Rounds at the beginning and at the end."""
BOUND_MS = 0.64
"""What the last turns may cost more than the first, each."""
PAGE_SIZE = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """`turns` rounds of one turn in each of `sessions`."""

    sessions: int = SESSIONS
    turns: int = TURNS
    new_tokens: int = NEW_TOKENS
    output_tokens: int = OUTPUT_TOKENS

    @property
    def context(self) -> int:
        """Tokens of a session after its last turn."""
        return self.turns * (self.new_tokens + self.output_tokens)


class Talk:
    """Sessions on an engine; whoever measures plays runner and store."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._now = 0.0
        self._ended = 0
        self._sampling = SamplingParams(max_tokens=shape.output_tokens, ignore_eos=True)
        pages = shape.sessions * (shape.context // PAGE_SIZE + 4) + 64
        self._engine = Engine(
            EngineSettings(
                page_size=PAGE_SIZE,
                num_pages=pages,
                max_context=shape.context + 1,
                vocab_size=1 << 16,
                max_step_tokens=shape.sessions * shape.new_tokens,
                max_running=shape.sessions,
                depth=0,
            )
        )
        for number in range(shape.sessions):
            opened = OpenSession(
                tenant="bench", session_id=f"s{number}", generation=number + 1, epoch=1, mode=SessionMode.STREAMING
            )
            self._engine.handle(opened, 0.0)

    def round(self, number: int) -> float:
        """CPU seconds of one turn in each session."""
        letters = [encode(self._turn(session, number)) for session in range(self._shape.sessions)]
        self._ended = 0
        began = time.thread_time()
        for letter in letters:
            self._hear(self._engine.handle(decode(letter), self._now))
        while self._ended < self._shape.sessions:
            plan = self._engine.plan(self._now)
            if plan is None:
                raise RuntimeError("a turn is not over, and there is nothing to plan")
            self._hear(self._engine.commit(plan, made_up(plan), self._now))
            self._now += 0.01
        return time.thread_time() - began

    def _turn(self, session: int, number: int) -> Submit:
        key = f"s{session}-{number}"
        ids = ((number * self._shape.sessions + session) & 0xFFFF, *range(1000, 1000 + self._shape.new_tokens - 1))
        turn = TurnOf(session_id=f"s{session}", generation=session + 1, epoch=1)
        return Submit(
            key=key, rid=key, ingress="bench", tenant="bench", input_ids=ids, sampling=self._sampling, turn=turn
        )

    def _hear(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            if isinstance(output, StoreTurn):
                self._hear(self._engine.handle(TurnStored(session=output.session, uid=output.uid), self._now))
            elif isinstance(output, Finished):
                if output.outcome is Outcome.ABORT:
                    raise RuntimeError(f"a turn was not run to its end: {output}")
                self._ended += 1


def measure(shape: Shape) -> list[float]:
    """Milliseconds of CPU per turn, round by round."""
    talk = Talk(shape)
    before = gc.get_threshold()
    settle_garbage()  # As a worker does.
    try:
        return [1e3 * talk.round(number) / shape.sessions for number in range(shape.turns)]
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def growth(rounds: Sequence[float], compared: int = COMPARED) -> tuple[float, float, float]:
    """(first, last, ratio): the median round at the beginning, without the very first, and at the end."""
    first, last = statistics.median(rounds[1 : compared + 1]), statistics.median(rounds[-compared:])
    return first, last, last / first


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench turns", description=__doc__)
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--new-tokens", type=int, default=NEW_TOKENS)
    parser.add_argument("--output-tokens", type=int, default=OUTPUT_TOKENS)
    parser.add_argument("--json", type=Path, default=None, help="file for the results")
    args = parser.parse_args(argv)
    shape = Shape(args.sessions, args.turns, args.new_tokens, args.output_tokens)
    rounds = measure(shape)
    first, last, ratio = growth(rounds)
    print(
        f"{shape.sessions} sessions of {shape.turns} turns of {shape.new_tokens} + {shape.output_tokens} tokens: "
        f"{first:.3f} ms of CPU per turn at first, {last:.3f} at the end ({shape.context} tokens): {ratio:.2f}x"
    )
    if args.json is not None:
        args.json.write_bytes(orjson.dumps({"rounds_ms": rounds, "ratio": ratio}))
    return last - first > BOUND_MS


if __name__ == "__main__":
    raise SystemExit(main())
