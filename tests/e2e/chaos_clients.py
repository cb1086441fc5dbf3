"""Clients of a chaos run. Each knows what every answer must be, and repeats a request until it is answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.e2e.answers import error_of, outcome_of, streamed, text_of, usage_of
from tests.e2e.chaos_ledger import (
    BROKEN_STREAM,
    DUPLICATED,
    LOST,
    NO_HISTORY,
    NOT_MENDED,
    NOT_REPLAYED,
    STUCK,
    WRONG_TEXT,
    Ledger,
)
from tests.e2e.oracles import ToyOracle
from tests.e2e.raw_http import Answer, CutShort, Leaving, RawClient

GIVE_UP_S = 150.0
"""A request that is repeated for so long counts as never answered."""
LONGEST = 700
"""Tokens after which a session is closed and another opened."""
MAX_THOUGHT_S = 0.4
CHAT = "POST", "/v1/chat/completions"


class Hopeless(Exception):
    """What was asked for cannot be had; it is in the ledger."""


@dataclass(frozen=True)
class Asked:
    """A turn or request: `prompt` is the whole context it must run on, `text` the answer it must get."""

    rid: str
    body: dict[str, Any]
    prompt: list[int]
    text: str


class Client:
    """One request at a time. `name` is for the ledger."""

    def __init__(self, ledger: Ledger, http: RawClient, name: str, seed: int) -> None:
        self.ledger = ledger
        self.http = http
        self.name = name
        self.rng = random.Random(seed)
        self.oracle = ToyOracle()

    async def pause(self) -> None:
        await asyncio.sleep(self.rng.uniform(0.02, 0.3))

    async def once(
        self, method: str, path: str, tree: Any = None, leave: Leaving | None = None, **headers: str
    ) -> Answer:
        """One try. An answer of status 0 is none; of one that was cut, what came of it."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            return await self.http.call(method, path, tree, leave=leave, headers=named)
        except CutShort as cut:
            whole = cut.body[: cut.body.rfind(b"\n\n") + 2]
            self.ledger.errors["connection cut"] += 1
            return Answer(0, body=whole if whole.startswith(b"data: ") else b"")
        except asyncio.TimeoutError:
            self.ledger.errors["no answer in a minute"] += 1
        except OSError as error:
            self.ledger.errors[type(error).__name__] += 1
        return Answer(0)

    async def insist(self, asked: Asked, **headers: str) -> Answer:
        """Ask until it is answered with success. Raises Hopeless."""
        began_at = time.monotonic()
        hurried = self.rng.random() < 0.1
        while True:
            leave = Leaving(self.rng.uniform(0.0, 0.3), reset=self.rng.random() < 0.5) if hurried else None
            answer = await self.once(*CHAT, self.dressed(asked), leave, **headers)
            hurried = False
            self.check_stream(asked, answer)
            if answer.status == 200 and outcome_of(answer) == "length":
                self.ledger.answered(self.name, worker_of(answer), time.monotonic() - began_at)
                return answer
            self.check_error(asked.rid, answer)
            if time.monotonic() - began_at > GIVE_UP_S:
                self.ledger.fault(STUCK, f"{asked.rid}: {answer.status} {answer.body[:300]!r}")
                raise Hopeless
            await self.pause()

    def dressed(self, asked: Asked) -> dict[str, Any]:
        """The same request as this try happens to ask for it."""
        stream = self.rng.random() < 0.6
        return {
            **asked.body,
            "stream": stream,
            **({"stream_options": {"include_usage": True}} if stream else {}),
            "on_duplicate": self.rng.choice(["join", "join", "reject"]),
            "on_worker_lost": self.rng.choice(["resume", "resume", "error"]),
        }

    def check_stream(self, asked: Asked, answer: Answer) -> None:
        """Whatever was shown of a stream must be how the answer begins."""
        if not streamed(answer) and not answer.body.startswith(b"data: "):
            return
        pieces = [event["choices"][0]["delta"].get("content", "") for event in answer.events if event.get("choices")]
        shown = "".join(pieces)
        if not asked.text.startswith(shown):
            self.ledger.fault(BROKEN_STREAM, f"{asked.rid}: {shown!r} is not how {asked.text!r} begins")

    def check_error(self, rid: str, answer: Answer) -> None:
        """Raises Hopeless for what no repetition mends."""
        if answer.status == 0:
            return
        error = error_of(answer)
        outcome = outcome_of(answer)
        self.ledger.errors[outcome] += 1
        if error is not None and not error["retryable"]:
            known = outcome in ("session_unknown", "parent_unknown")
            self.ledger.fault(LOST if known else NOT_MENDED, f"{rid}: {answer.status} {answer.body[:300]!r}")
            raise Hopeless

    def check_text(self, asked: Asked, answer: Answer, earlier: list[list[int]]) -> None:
        """`earlier`: contexts that it must not have run on."""
        text, tokens = text_of(answer), usage_of(answer)["prompt_tokens"]
        if text == asked.text and tokens == len(asked.prompt):
            return
        words = asked.body["messages"][0]["content"]
        stale = any(
            self.oracle.agrees(self.oracle.prompt(base, words, named=False), text, len(text)) for base in earlier
        )
        kind = NO_HISTORY if stale or tokens < len(asked.prompt) else DUPLICATED if tokens > len(asked.prompt) else ""
        self.ledger.fault(
            kind or WRONG_TEXT, f"{asked.rid}: {tokens} tokens, {text!r}; not {len(asked.prompt)}, {asked.text!r}"
        )

    def check_repeated(self, asked: Asked, answer: Answer) -> None:
        self.ledger.done["repeated"] += 1
        if text_of(answer) != asked.text:
            self.ledger.fault(WRONG_TEXT, f"{asked.rid}, repeated: {text_of(answer)!r}, not {asked.text!r}")
        if not extra(answer, "replayed"):
            self.ledger.fault(NOT_REPLAYED, asked.rid)

    def asked(self, rid: str, base: list[int], body: dict[str, Any]) -> Asked:
        words = "".join(self.rng.choices("abcdefgh ", k=self.rng.randint(4, 24)))
        max_tokens = self.rng.choice([2, 4, 8, 16, 60])
        prompt = self.oracle.prompt(base, words, named=False)
        text = bytes(self.oracle.output(prompt, max_tokens)).decode()
        body = {"messages": [{"role": "user", "content": words}], "max_tokens": max_tokens, "temperature": 0, **body}
        return Asked(rid, body, prompt, text)


class Chatter(Client):
    """Holds one session at a time: each turn must run on all that was acknowledged before, exactly once."""

    def __init__(self, ledger: Ledger, http: RawClient, name: str, seed: int) -> None:
        super().__init__(ledger, http, name, seed)
        self.session = ""
        self.turns: list[Asked] = []
        self.heads: list[list[int]] = [[]]
        self._opened = 0

    async def run(self, until: Callable[[], bool]) -> None:
        while not until():
            try:
                await self.step()
            except Hopeless:
                self.session = ""
            await asyncio.sleep(self.rng.uniform(0.0, MAX_THOUGHT_S))

    async def step(self) -> None:
        """A new turn, or an old one again. Raises Hopeless."""
        if self.session and len(self.heads[-1]) > LONGEST:
            await self.close()
        if not self.session:
            await self.open()
        if self.turns and self.rng.random() < 0.15:
            await self.repeat(self.rng.choice(self.turns))
        else:
            await self.turn()

    async def open(self) -> None:
        self._opened += 1
        name = f"{self.name}-{self._opened}"
        await self._manage("POST", "/v1/sessions", {"id": name}, settled="session_exists")
        self.session, self.turns, self.heads = name, [], [[]]
        self.ledger.done["sessions opened"] += 1

    async def close(self) -> None:
        await self._manage("DELETE", f"/v1/sessions/{self.session}", None, settled="session_unknown")
        self.session = ""

    async def turn(self) -> None:
        number = len(self.turns) + 1
        rid = f"{self.session}/{number}"
        asked = self.asked(rid, self.heads[-1], {"session": {"id": self.session}, "rid": rid})
        answer = await self.insist(asked)
        self.check_text(asked, answer, self.heads[:-1])
        told = extra(answer, "session")["turn"]
        if told != number:
            kind = LOST if told < number else DUPLICATED
            self.ledger.fault(kind, f"{asked.rid} is turn {told} of its session")
        first = answer.headers.get("x-remora-worker")
        if streamed(answer) and first not in (None, worker_of(answer)):
            self.ledger.done["streams that went on elsewhere"] += 1
        self.turns.append(asked)
        self.heads.append([*asked.prompt, *asked.text.encode()])
        self.ledger.done["turns"] += 1
        self.ledger.done["answers streamed"] += streamed(answer)
        self.ledger.done["told by replay"] += bool(extra(answer, "replayed"))

    async def repeat(self, asked: Asked) -> None:
        self.check_repeated(asked, await self.insist(asked))

    async def account(self) -> None:
        """At the end: another turn, then every acknowledged turn again, and what the session says of itself. Raises
        Hopeless."""
        if not self.session:
            await self.open()
        await self.turn()
        for asked in self.turns:
            await self.repeat(asked)
        info = (await self._manage("GET", f"/v1/sessions/{self.session}", None)).tree
        told = info["turns"], info["tokens"], info["head"]
        known = len(self.turns), len(self.heads[-1]), self.turns[-1].rid
        if told != known:
            self.ledger.fault(LOST if told < known else DUPLICATED, f"{self.session}: {told}, not {known}")

    async def _manage(self, method: str, path: str, tree: Any, settled: str = "") -> Answer:
        """Repeat until it is done. `settled`: the error that says that an earlier try did it. Raises Hopeless."""
        began_at = time.monotonic()
        unheard = False
        while time.monotonic() - began_at < GIVE_UP_S:
            answer = await self.once(method, path, tree)
            if answer.status == 200 or (unheard and answer.status and outcome_of(answer) == settled):
                return answer
            unheard = True
            self.check_error(f"{method} {path}", answer)
            await self.pause()
        self.ledger.fault(STUCK, f"{method} {path}")
        raise Hopeless


class Passerby(Client):
    """Requests without a session, by Idempotency-Key: now and then one again, which must be told, not run. `repeats`:
    share of those."""

    repeats = 0.4
    thought_s = MAX_THOUGHT_S

    async def run(self, until: Callable[[], bool]) -> None:
        count = 0
        while not until():
            count += 1
            asked = self.asked(f"{self.name}/{count}", [], {})
            try:
                answer = await self.insist(asked, Idempotency_Key=asked.rid)
                self.check_text(asked, answer, [])
                self.ledger.done["requests without a session"] += 1
                if self.rng.random() < self.repeats:
                    self.check_repeated(asked, await self.insist(asked, Idempotency_Key=asked.rid))
            except Hopeless:
                continue
            await asyncio.sleep(self.rng.uniform(0.0, self.thought_s))


def extra(answer: Answer, name: str) -> Any:
    """A field of ours in an answer, wherever a stream has it."""
    trees = answer.events if streamed(answer) else [answer.tree]
    return next((tree[name] for tree in trees if tree.get(name) is not None), None)


def worker_of(answer: Answer) -> str | None:
    """Who ended the request."""
    session = extra(answer, "session")
    return session["worker"] if session else answer.headers.get("x-remora-worker")
