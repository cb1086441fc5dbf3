"""Clients that take no error for an answer, and know every text: any try that fails is a fault."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tests.e2e.answers import outcome_of
from tests.e2e.chaos_clients import CHAT, Asked, Chatter, Client, Hopeless, Passerby, worker_of
from tests.e2e.chaos_ledger import Ledger
from tests.e2e.raw_http import Answer, RawClient

ERROR = "errors that a client heard"


class Strict(Client):
    """Asks once. `thought_s`: the longest that it waits before the next request."""

    thought_s = 0.05

    async def insist(self, asked: Asked, **headers: str) -> Answer:
        """Raises Hopeless for anything but a success."""
        began_at = time.monotonic()
        answer = await self.once(*CHAT, self.dressed(asked), **headers)
        self.check_stream(asked, answer)
        if answer.status == 200 and outcome_of(answer) == "length":
            self.ledger.answered(self.name, worker_of(answer), time.monotonic() - began_at)
            return answer
        self.ledger.errors[outcome_of(answer)] += 1
        self.ledger.fault(ERROR, f"{asked.rid}: {answer.status} {answer.body[-300:]!r}")
        raise Hopeless

    def dressed(self, asked: Asked) -> dict[str, Any]:
        stream = self.rng.random() < 0.5
        self.ledger.done["streamed" if stream else "unary"] += 1
        return {**asked.body, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}

    def check_error(self, rid: str, answer: Answer) -> None:
        """Of opening and closing. Raises Hopeless."""
        self.ledger.errors[outcome_of(answer)] += 1
        self.ledger.fault(ERROR, f"{rid}: {answer.status} {answer.body[-300:]!r}")
        raise Hopeless


class Resident(Strict, Chatter):
    """Holds one session after another; `moves` in the ledger: another worker answered than the last time."""

    def __init__(self, ledger: Ledger, http: RawClient, name: str, seed: int) -> None:
        super().__init__(ledger, http, name, seed)
        self._home: str | None = None

    async def run(self, until: Callable[[], bool]) -> None:
        while not until():
            try:
                await self.step()
            except Hopeless:
                self.session = ""
            await asyncio.sleep(self.rng.uniform(0.0, self.thought_s))

    async def open(self) -> None:
        await super().open()
        self._home = None

    async def turn(self) -> None:
        await super().turn()
        home = self.ledger.owners.get(self.name)
        self.ledger.done["moves of sessions"] += self._home not in (None, home)
        self._home = home


class Visitor(Strict, Passerby):
    """The same, who takes no error; and repeats itself less."""

    repeats = 0.1
