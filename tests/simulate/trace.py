"""Synthetic sessions: when they begin, and what each of their turns adds. The same for every policy, by seed."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TraceShape:
    """`sessions` that begin within `seconds`. `bursty`: the rate follows a day's wave, and now and then triples for a
    minute; else it is constant (Poisson). Means: turns per session (geometric), think time between turns (log-normal),
    tokens of the first prompt, of later inputs and of outputs (log-normal). A few sessions (`heavy_share`) have turns
    `heavy` times as frequent: what makes a worker hot."""

    sessions: int
    seconds: float
    bursty: bool
    turns: float = 6.0
    think_s: float = 30.0
    first_tokens: float = 600.0
    input_tokens: float = 120.0
    output_tokens: float = 200.0
    heavy_share: float = 0.02
    heavy: float = 8.0


class SessionTrace:
    """Its turns, packed: think seconds before the turn (0 for the first), tokens added, tokens generated."""

    __slots__ = ("inputs", "number", "outputs", "starts_at", "thinks")

    def __init__(self, number: int, starts_at: float, thinks: array[float], inputs: array[int], outputs: array[int]):
        self.number = number
        self.starts_at = starts_at
        self.thinks = thinks
        self.inputs = inputs
        self.outputs = outputs


def sessions(shape: TraceShape, seed: int) -> Iterator[SessionTrace]:
    """In order of their beginning."""
    random_of = random.Random(f"{seed}/{shape.bursty}")
    for number, starts_at in enumerate(_starts(shape, random_of)):
        heavy = random_of.random() < shape.heavy_share
        turns = 1 + _geometric(random_of, (shape.turns - 1) * (shape.heavy if heavy else 1.0))
        think_s = shape.think_s / (shape.heavy if heavy else 1.0)
        thinks, inputs, outputs = array("f"), array("l"), array("l")
        for turn in range(turns):
            thinks.append(_lognormal(random_of, think_s) if turn else 0.0)
            inputs.append(1 + int(_lognormal(random_of, shape.input_tokens if turn else shape.first_tokens)))
            outputs.append(1 + int(_lognormal(random_of, shape.output_tokens)))
        yield SessionTrace(number, starts_at, thinks, inputs, outputs)


def _starts(shape: TraceShape, random_of: random.Random) -> Iterator[float]:
    """`shape.sessions` instants within about `shape.seconds`, by thinning a Poisson process."""
    mean = shape.sessions / shape.seconds
    if not shape.bursty:
        at = 0.0
        for _ in range(shape.sessions):
            at += random_of.expovariate(mean)
            yield at
        return
    bursts = sorted(random_of.uniform(0, shape.seconds) for _ in range(max(1, int(shape.seconds / 600))))
    at, made, peak = 0.0, 0, mean * 1.6 * 3.0
    while made < shape.sessions:
        at += random_of.expovariate(peak)
        wave = 1.0 + 0.6 * math.sin(2 * math.pi * at / shape.seconds - math.pi / 2)
        burst = 3.0 if any(begin <= at % shape.seconds < begin + 60 for begin in bursts) else 1.0
        if random_of.random() * peak < mean * wave * burst:
            made += 1
            yield at


def _geometric(random_of: random.Random, mean: float) -> int:
    return int(math.log(1 - random_of.random()) / math.log(mean / (mean + 1))) if mean > 0 else 0


def _lognormal(random_of: random.Random, mean: float, sigma: float = 0.8) -> float:
    return random_of.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma)
