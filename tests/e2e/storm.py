"""A client's view of one session under a storm: what its history may be, and what every answer must therefore be.

An oracle says what the histories are: of the toy runner every token, of a real model all but its own outputs.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.answers import STRANGE, flaws_of, outcome_of, text_of, usage_of
from tests.e2e.oracles import Oracle, ToyOracle
from tests.e2e.raw_http import Answer, CutShort, Leaving, RawClient

SETTLE_S = 10.0
FIRST_LOOK_S = 0.03
LAST_LOOK_S = 0.3
MAX_LATE = 2
CHAT = "POST", "/v1/chat/completions"
EXPECTED_REASONS = {
    "session_busy", "queue_full", "session_unknown", "session_closing", "deadline", "waiting_timeout",
    "running_timeout", "too_large", "parent_unknown", "session_exists",
}  # fmt: skip
LOSS_REASONS = {"worker_lost", "client_disconnect", "shutdown", "cut", STRANGE}
"""What a client may also hear while processes are being killed."""


@dataclass
class Weather:
    """What all drivers share."""

    client: RawClient
    rng: random.Random
    losses: bool = False
    """Whether workers are being killed meanwhile: then sessions may move and turns may be lost."""
    pressure: bool = False
    """Whether pages run short: then idle sessions lose their KV."""
    oracle: Oracle = field(default_factory=ToyOracle)
    longest: int = 2000
    """Tokens after which a session is closed, so that it goes on to fit."""
    shorten: int = 1
    """What lengths of texts and outputs are divided by."""
    too_many_tokens: int = 8191
    """A `max_tokens` that the model's context has, but not behind a prompt."""
    lateness_s: float = 0.15
    """How long after its client has left a turn may still begin or end."""
    settle_s: float = SETTLE_S
    seen: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    """Chat requests sent, by what came of them."""
    faults: list[str] = field(default_factory=list)

    @property
    def sent(self) -> int:
        """Chat requests, whatever came of them."""
        return self.answers.total()

    @property
    def bearable(self) -> set[str]:
        """How any turn may end just now."""
        return {"left", *LOSS_REASONS} if self.losses else set()

    def fault(self, text: str) -> None:
        self.faults.append(text)
        print(f"FAULT {text}", file=sys.stderr, flush=True)

    async def chat(self, body: dict[str, Any] | bytes, leave: Leaving | None = None) -> Answer:
        """One request for a chat, counted, and its answer with what is wrong with any answer. An answer that was cut
        counts as none."""
        name = body.get("rid", "a request without a rid") if isinstance(body, dict) else repr(body[:60])
        try:
            answer = await self.client.call(*CHAT, body, leave=leave)
        except (OSError, asyncio.TimeoutError, CutShort) as error:
            self.answers["cut short"] += 1
            if not self.losses:
                self.fault(f"{name}: {error!r}")
            return Answer(0)
        self.answers[outcome_of(answer)] += 1
        most = body.get("max_tokens", 0) if isinstance(body, dict) else 0
        for flaw in flaws_of(answer, most):
            self.fault(f"{name}: {flaw}")
        return answer


@dataclass
class Turn:
    """A request that was sent, and what came of it. `named`: it names its parent."""

    rid: str
    text: str
    max_tokens: int
    oracle: Oracle
    named: bool = False
    answer: Answer = field(default_factory=lambda: Answer(0))

    def prompt(self, base: list[int]) -> list[int]:
        return self.oracle.prompt(base, self.text, named=self.named)

    def context(self, base: list[int]) -> list[int]:
        prompt = self.prompt(base)
        return prompt + self.oracle.output(prompt, self.max_tokens)

    def twin(self) -> Turn:
        """The same turn, to be sent again."""
        return Turn(self.rid, self.text, self.max_tokens, self.oracle, self.named)


class Driver:
    """One session: what its head may be, as whole contexts. Usually that is one; after a turn whose end nobody
    heard, there are more until the next answer tells."""

    def __init__(self, weather: Weather, name: str) -> None:
        self.weather = weather
        self.rng = random.Random(weather.rng.random())
        self.name = name
        self.heads: list[list[int]] = []
        self.nodes: dict[str, list[int]] = {}
        self.worker: str | None = None
        self.count = 0
        self.undisturbed = False
        """Nothing has come between the last answer and now."""
        self.mode = "tree"
        self.unheard: list[Turn] = []
        """Turns sent since the head was certain."""
        self.late: list[Turn] = []
        """Turns whose client left, of which nothing was to be seen afterwards: on a machine that is busy with other
        things, one may be read, run and stored only after we looked."""

    # -- plumbing --------------------------------------------------------------------------------------------------

    def fault(self, text: str) -> None:
        self.weather.fault(f"{self.name}: {text}")

    def turn(self, max_tokens: int | None = None) -> Turn:
        self.count += 1
        text = "".join(self.rng.choices("abcdefgh ", k=self.rng.randint(1, 60 // self.weather.shorten)))
        tokens = max_tokens if max_tokens is not None else self.rng.randint(1, 12)
        tokens = -(-tokens // self.weather.shorten)
        return Turn(f"{self.name}/{self.count}", text, tokens, self.weather.oracle)

    async def send(self, turn: Turn, leave: Leaving | None = None, session: Any = None, **fields: Any) -> Answer:
        body = {
            "messages": [{"role": "user", "content": turn.text}],
            "max_tokens": turn.max_tokens,
            "temperature": 0,
            "rid": turn.rid,
            "session": {"id": self.name, **(session or {})},
            "stream": self.rng.random() < 0.5,
            "stream_options": {"include_usage": True},
            **self.weather.oracle.options(turn.max_tokens),
            **fields,
        }
        if leave is not None and leave.after_events:
            body["stream"] = True
        self.unheard.append(turn)
        turn.answer = await self.weather.chat(body, leave)
        self._note(turn)
        return turn.answer

    def _note(self, turn: Turn) -> None:
        """Count the answer and complain about one that should never be given."""
        answer = turn.answer
        outcome = outcome_of(answer)
        worker = answer.headers.get("x-remora-worker")
        if worker and answer.status == 200:
            if self.worker not in (None, worker) and not self.weather.losses:
                self.fault(f"{turn.rid} ran on {worker}, not on {self.worker}")
            self.worker = worker
        allowed = EXPECTED_REASONS | {"left", "length", "abort"} | self.weather.bearable
        if outcome not in allowed:
            self.fault(f"{turn.rid}: {answer.status} {outcome} {answer.body[:300]!r}")

    async def info(self) -> dict[str, Any] | None:
        answer = await self.weather.client.call("GET", f"/v1/sessions/{self.name}")
        return answer.tree if answer.status == 200 else None

    async def settled(self) -> dict[str, Any] | None:
        """The session once no turn runs or waits in it. None: it is closed."""
        deadline = time.monotonic() + self.weather.settle_s
        look_s = FIRST_LOOK_S
        while True:
            info = await self.info()
            if info is None or (info["state"] in ("idle", None) and not info["queued"]):
                return info
            if time.monotonic() > deadline:
                self.fault(f"did not come to rest: {info}")
                return info
            await asyncio.sleep(look_s)
            look_s = min(2 * look_s, LAST_LOOK_S)

    async def open(self, mode: str = "tree") -> None:
        self.mode = mode
        answer = await self.weather.client.call("POST", "/v1/sessions", {"id": self.name, "mode": mode})
        if answer.status != 200:
            self.fault(f"could not be opened: {answer.status} {answer.body[:300]!r}")
        self.heads, self.nodes, self.worker, self.undisturbed, self.late = [[]], {}, None, False, []

    # -- judging ---------------------------------------------------------------------------------------------------

    def judge(self, turn: Turn, bases: list[list[int]]) -> list[list[int]]:
        """Compare a whole answer with what may have come before it. Returns the contexts that it may have led to."""
        usage = usage_of(turn.answer)
        fits = self._fitting(turn, bases)
        if not fits and self.late:
            fits = self._fitting(turn, [base for base, _ in _chains(bases, self.late)])
            self._note_late(fits)
        if not fits:
            lengths = sorted({len(turn.prompt(base)) for base in bases})
            self.fault(f"{turn.rid}: text or P {usage['prompt_tokens']} fits none of the histories (P {lengths})")
            return [turn.context(base) for base in bases]
        if usage["completion_tokens"] != turn.max_tokens:
            self.fault(f"{turn.rid}: {usage['completion_tokens']} tokens, not {turn.max_tokens}")
        return [turn.context(base) for base in fits]

    def _fitting(self, turn: Turn, bases: list[list[int]]) -> list[list[int]]:
        usage, text = usage_of(turn.answer), text_of(turn.answer)
        prompts = [(base, turn.prompt(base)) for base in bases]
        return [
            base
            for base, prompt in prompts
            if len(prompt) == usage["prompt_tokens"] and turn.oracle.agrees(prompt, text, usage["completion_tokens"])
        ]

    def _note_late(self, fits: Sequence[object]) -> None:
        if fits:
            self.weather.seen["left turns that came late"] += 1
            self.late, self.undisturbed = [], False

    async def resolve(self, turns: list[Turn]) -> None:
        """After turns from the head, some of which may have run unheard: in which order, and which, we learn from
        the session's head."""
        turns = [*turns, *(turn for turn in self.unheard if turn.rid not in {one.rid for one in turns})]
        await asyncio.sleep(self.weather.lateness_s)
        info = await self.settled()
        if info is None:
            self.fault("vanished")
            await self.open()
            return
        self.undisturbed = False
        possible = _chains(self.heads, turns)
        for turn in turns:
            if outcome_of(turn.answer) == "length":
                before = [base for base, _ in possible]
                self.judge(turn, before)
        fits = _as_told(possible, info)
        if not fits and self.late:
            fits = _as_told(_chains(self.heads, [*turns, *self.late]), info)
            self._note_late(fits)
        heard = [turn.rid for turn in turns if outcome_of(turn.answer) == "length"]
        if not fits:
            self.fault(f"{info['tokens']} tokens at {info['head']!r} fit no order of {[turn.rid for turn in turns]}")
            fits = self.heads
        if heard and info["head"] not in {turn.rid for turn in (*turns, *self.late)}:
            self.fault(f"{heard} were told as done; the head is {info['head']!r}")
        gone = [turn for turn in turns if outcome_of(turn.answer) == "left" and turn.rid != info["head"]]
        self.late = [*self.late, *gone][-MAX_LATE:]
        self.heads = unique(fits)
        self.unheard = []
        if len(self.heads) == 1 and info["head"]:
            self.nodes[info["head"]] = self.heads[0]


def _as_told(possible: list[tuple[list[int], str | None]], info: dict[str, Any]) -> list[list[int]]:
    """Those of the contexts that the session's head may be."""
    return [context for context, rid in possible if rid in (None, info["head"]) and len(context) == info["tokens"]]


def _chains(heads: list[list[int]], turns: list[Turn]) -> list[tuple[list[int], str | None]]:
    """(context, rid of its last turn) of every order of every choice of `turns` upon every head."""
    found: list[tuple[list[int], str | None]] = [(head, None) for head in heads]
    grow = [(head, None, tuple(turns)) for head in heads]
    while grow:
        context, _, left = grow.pop()
        for turn in left:
            longer = turn.context(context)
            found.append((longer, turn.rid))
            grow.append((longer, None, tuple(other for other in left if other is not turn)))
    return found


def unique(contexts: list[list[int]]) -> list[list[int]]:
    return [list(one) for one in dict.fromkeys(map(tuple, contexts))]
