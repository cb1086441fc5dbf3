"""A runner without a model, for tests and for trying a cluster: the next token is a hash of what its KV holds.

It reads every position of the context back through the page table, so that one wrong, stale, torn or foreign page
changes the text. That makes it the oracle of the engine's tests: whatever happened on the way, a request's output must
equal that of the same prompt on a fresh engine. It never stops by itself, but for
where a grammar lets it: what a grammar allows it chooses from by that same hash.

Its weights are a number that goes into every hash: KV of other weights is as wrong as a foreign page.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from actors.engine.plan import NUM_RESERVED_PAGES, PlanItem, StepPlan, StepResult
from actors.messages import PromptScore, TokenLogprobs
from actors.runner.base import RunnerInfo
from actors.runner.copied import Copied, check_length
from actors.runner.grammar.matchers import DeadEnd, Matchers, matchers_for
from actors.runner.randomness import splitmix64

TOY_VOCAB_SIZE = 260
TOY_EOS = 257
_FIRST_PRINTABLE, _NUM_PRINTABLE = 32, 95
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


class ToyHandle:
    """A step that is over when its time is."""

    def __init__(self, result: StepResult, done_at: float, clock: Callable[[], float], sleep: Callable[[float], None]):
        self._result = result
        self._done_at = done_at
        self._clock = clock
        self._sleep = sleep

    def wait(self) -> StepResult:
        left = self._done_at - self._clock()
        if left > 0:
            self._sleep(left)
        return self._result


class ToyRunner:
    """Implements `ModelRunner`. Token ids below 256 are bytes; it emits printable ASCII only.

    `weights`: the path of a file whose content stands for the weights (see `toy_weights`); empty = none.
    `step_s`: how long a step takes; steps queue up behind one another as they do on a device.
    `kv`: uint64 [num_pages, page_size], a hash of (token, position) for each written slot, 0 for never written.
    """

    def __init__(
        self,
        *,
        page_size: int = 16,
        kv_tokens: int = 65536,
        max_context: int = 8192,
        step_s: float = 0.0,
        weights: str = "",
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        version, self._salt = toy_weights(weights)
        num_pages = kv_tokens // page_size + NUM_RESERVED_PAGES
        self.kv = np.zeros((num_pages, page_size), dtype=np.uint64)
        self.step_log: list[tuple[int, ...]] = []
        self.keep_log = False
        self._step_s = step_s
        self._clock = clock
        self._sleep = sleep
        self._busy_until = 0.0
        self._kv_lock = threading.Lock()
        self._last: dict[int, int] = {}
        vocab_bytes = tuple(bytes([i]) if i < 256 else b"" for i in range(TOY_VOCAB_SIZE))
        matchers = matchers_for(vocab_bytes, frozenset({TOY_EOS}))
        self._matchers = matchers if isinstance(matchers, Matchers) else None
        self._info = RunnerInfo(
            name="toy",
            vocab_size=TOY_VOCAB_SIZE,
            page_size=page_size,
            num_pages=num_pages,
            max_context=max_context,
            eos_ids=frozenset({TOY_EOS}),
            vocab_bytes=vocab_bytes,
            description="toy: next token = hash of the KV read back",
            no_grammars=matchers if isinstance(matchers, str) else "",
            page_bytes=page_size * self.kv.itemsize,
            kv_format=f"toy uint64 [{page_size}] of {version}",
            weights=version,
        )

    @property
    def info(self) -> RunnerInfo:
        return self._info

    @property
    def matchers(self) -> Matchers | None:
        return self._matchers

    def launch(self, plan: StepPlan) -> ToyHandle:
        items = tuple(plan.each())
        if self.keep_log:
            self.step_log.append(tuple(item.uid for item in items))
        sampled: dict[int, int] = {}
        dead_ends: dict[int, str] = {}
        logprobs: dict[int, TokenLogprobs] = {}
        with self._kv_lock:
            for item in items:
                self._write(item)
            for item in items:
                if item.samples:
                    try:
                        sampled[item.uid] = token = self.choose(item)
                        if item.sampling.logprobs is not None:
                            sampling = item.sampling
                            logprobs[item.uid] = toy_logprobs(token, sampling.logprobs or 0, sampling.logprob_ids)
                    except DeadEnd as error:
                        dead_ends[item.uid] = str(error)
            scores = {item.uid: self._scores(item) for item in items if item.scored}
        # The next step may be launched already and name a request that met its dead end here.
        self._last = {**dict.fromkeys(dead_ends, 0), **sampled}
        now = self._clock()
        self._busy_until = max(now, self._busy_until) + self._step_s
        result = StepResult(sampled=sampled, dead_ends=dead_ends, logprobs=logprobs, scores=scores)
        return ToyHandle(result, self._busy_until, self._clock, self._sleep)

    def read_pages(self, pages: Sequence[int]) -> Copied[bytes]:
        with self._kv_lock:
            return Copied(self.kv[list(pages)].tobytes())

    def write_pages(self, pages: Sequence[int], data: bytes) -> Copied[None]:
        check_length(pages, data, self._info)
        with self._kv_lock:
            self.kv[list(pages)] = np.frombuffer(data, dtype=np.uint64).reshape(len(pages), -1)
        return Copied(None)

    def close(self) -> None:
        self.kv = np.zeros((0, self._info.page_size), dtype=np.uint64)

    def choose(self, item: PlanItem) -> int:
        """The token after position start + count - 1. Raises DeadEnd."""
        digest = self._digest(item, item.start + item.count)
        if item.sampling.temperature > 0:
            digest ^= splitmix64(item.sampling.seed * 1_000_003 + item.output_index)
        if item.constrained:
            return self._choose_allowed(item, splitmix64(digest))
        return _FIRST_PRINTABLE + splitmix64(digest) % _NUM_PRINTABLE

    def _digest(self, item: PlanItem, length: int) -> int:
        """Of what the KV of the first `length` positions holds."""
        page_size = self._info.page_size
        pages = np.asarray(item.page_table[: -(-length // page_size)], dtype=np.int64)
        held = self.kv[pages].reshape(-1)[:length]
        weights = np.arange(length, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        return int(np.bitwise_xor.reduce(held * weights * _ODD)) ^ int(held.sum(dtype=np.uint64))

    def _scores(self, item: PlanItem) -> tuple[TokenLogprobs, ...]:
        """Of the prompt's tokens, each by the KV of all that stands before it."""
        count, named = item.sampling.logprobs or 0, item.sampling.logprob_ids
        return tuple(
            toy_score(self._digest(item, length), token, count, named)
            for length, token in enumerate(item.scored, item.scored_at + 1)
        )

    def _choose_allowed(self, item: PlanItem, digest: int) -> int:
        """Of what the grammar allows, and of the end and printable ASCII among that if there are any."""
        if self._matchers is None or item.seen is None:
            raise AssertionError("a constrained request where there are no grammars")
        known = item.start + item.count - item.pending
        output = list(item.seen[item.prompt_len : known]) + ([self._last[item.uid]] if item.pending else [])
        allowed = np.flatnonzero(self._matchers.allowed(item.uid, output)).tolist()
        plain = range(_FIRST_PRINTABLE, _FIRST_PRINTABLE + _NUM_PRINTABLE)
        likely = [token for token in allowed if token in plain or token == TOY_EOS]
        candidates = likely or allowed
        return int(candidates[digest % len(candidates)])

    def _write(self, item: PlanItem) -> None:
        tokens = list(item.tokens)
        if item.pending:
            tokens.append(self._last[item.uid])
        if len(tokens) != item.count:
            raise AssertionError(f"{len(tokens)} tokens for {item.count} positions")
        page_size = self._info.page_size
        for position, token in enumerate(tokens, item.start):
            page = item.page_table[position // page_size]
            self.kv[page, position % page_size] = splitmix64((position << 20) ^ token ^ self._salt) | 1


def toy_weights(path: str) -> tuple[str, int]:
    """(version, number) of the weights that a file's content stands for. Raises OSError when it cannot be read."""
    if not path:
        return "toy", 0
    digest = hashlib.blake2b(Path(path).read_bytes(), digest_size=6).digest()
    return f"toy-{digest.hex()}", int.from_bytes(digest, "big") << 16


def toy_logprobs(token: int, count: int, named: Sequence[int] = ()) -> TokenLogprobs:
    """There are no probabilities here: the chosen token has half of it, those that follow it in the vocabulary half of
    the rest each."""
    likeliest = [(token + at) % TOY_VOCAB_SIZE for at in range(count)]
    told = tuple((other, _halved(token, other)) for other in (*likeliest, *named))
    return _halved(token, token), told


def toy_score(digest: int, token: int, count: int, named: Sequence[int] = ()) -> TokenLogprobs:
    """The same of a token of a prompt, by the digest of all before it: what would have been chosen has half of it."""
    chosen = _FIRST_PRINTABLE + splitmix64(digest) % _NUM_PRINTABLE
    return _halved(chosen, token), toy_logprobs(chosen, count, named)[1]


def toy_prompt_scores(
    prompt: Sequence[int], begin: int, count: int = 0, named: Sequence[int] = ()
) -> list[PromptScore]:
    """What a toy runner tells of a prompt's tokens from position `begin` on, computed without any KV: the reference for
    tests."""
    told: list[PromptScore] = []
    digest = total = 0
    for position, token in enumerate(prompt):
        if position >= begin:
            told.append((token, toy_score(digest ^ total, token, count, named) if position else None))
        value = splitmix64((position << 20) ^ token) | 1
        digest ^= (value * (2 * position + 1) * int(_ODD)) & _MASK
        total = (total + value) & _MASK
    return told


def _halved(chosen: int, token: int) -> float:
    return -math.log(2) * ((token - chosen) % TOY_VOCAB_SIZE + 1)


def toy_continuation(
    prompt: list[int], num_tokens: int, *, seed: int = 0, temperature: float = 0.0, salt: int = 0
) -> list[int]:
    """What a toy runner generates after `prompt`, computed without any KV: the reference for tests. `salt`: the number
    of its weights."""
    tokens = list(prompt)
    values = [splitmix64((position << 20) ^ token ^ salt) | 1 for position, token in enumerate(tokens)]
    out: list[int] = []
    for index in range(num_tokens):
        digest, total = 0, 0
        for position, value in enumerate(values):
            digest ^= (value * (2 * position + 1) * int(_ODD)) & _MASK
            total = (total + value) & _MASK
        digest ^= total
        if temperature > 0:
            digest ^= splitmix64(seed * 1_000_003 + index)
        token = _FIRST_PRINTABLE + splitmix64(digest) % _NUM_PRINTABLE
        out.append(token)
        values.append(splitmix64((len(tokens) << 20) ^ token ^ salt) | 1)
        tokens.append(token)
    return out
