"""How large each workload is, and what a workload is."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.bench.client import ChatClient
from tests.bench.figures import Figures
from tests.bench.texts import Sizing


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of the workloads. Those that end in `_tokens` count tokens, those in `_s` seconds.

    `opening_at_once`: how many of the idle sessions are opened at the same time. `beside_streams`: replies streamed
    beside them. `storm_leave_s`: by when a client of the storm that leaves has left.
    """

    prefill_tokens: int = 512
    prefill_prompts: int = 4
    decode_prompt_words: int = 16
    decode_tokens: int = 128
    decode_concurrency: tuple[int, ...] = (1, 8, 16)
    chats: int = 8
    turns: int = 8
    turn_tokens: int = 200
    reply_tokens: int = 64
    long_chats: int = 4
    long_turns: int = 6
    long_turn_tokens: int = 800
    long_reply_tokens: int = 64
    idle_sessions: int = 2000
    opening_at_once: int = 32
    beside_streams: int = 8
    storm_clients: int = 32
    storm_tokens: int = 128
    storm_leave_s: float = 4.0
    shared_requests: int = 32
    shared_tokens: int = 1024
    shared_reply_tokens: int = 32


@dataclass(frozen=True, slots=True)
class Bench:
    """What a workload needs. `stateless`: send whole conversations, as a plain OpenAI client does."""

    client: ChatClient
    sizing: Sizing
    shapes: Shapes
    stateless: bool = False


Workload = Callable[[Bench, random.Random], Awaitable[Figures]]
