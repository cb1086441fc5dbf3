"""The workloads, each measured once per call against a running server."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.bench.client import ChatClient, Message
from tests.bench.figures import Figures, Reply, chat_figures, decode_figures, prefill_figures
from tests.bench.texts import Sizing, fresh_prompt, random_words


@dataclass(frozen=True, slots=True)
class Shapes:
    """Sizes of the workloads. Those that end in `_tokens` count tokens."""

    prefill_tokens: int = 512
    prefill_prompts: int = 4
    decode_prompt_words: int = 16
    decode_tokens: int = 128
    decode_concurrency: tuple[int, ...] = (1, 8, 16)
    chats: int = 8
    turns: int = 8
    turn_tokens: int = 200
    reply_tokens: int = 64


@dataclass(frozen=True, slots=True)
class Bench:
    """What a workload needs. `stateless`: send whole conversations, as a plain OpenAI client does."""

    client: ChatClient
    sizing: Sizing
    shapes: Shapes
    stateless: bool = False


Workload = Callable[[Bench, random.Random], Awaitable[Figures]]
NAMES = ("prefill", "decode", "chat")


def workloads(names: tuple[str, ...], shapes: Shapes) -> dict[str, Workload]:
    """By the name under which the results are reported: `decode` is one for each concurrency."""
    found: dict[str, Workload] = {}
    if "prefill" in names:
        found["prefill"] = prefill
    if "decode" in names:
        for streams in shapes.decode_concurrency:
            found[f"decode_{streams}"] = decode_at(streams)
    if "chat" in names:
        found["chat"] = chat
    return found


async def prefill(bench: Bench, rng: random.Random) -> Figures:
    """Long prompts one after the other, one token of reply."""
    words = bench.sizing.words_of_prompt(bench.shapes.prefill_tokens)
    return prefill_figures(
        [await bench.client.chat(fresh_prompt(rng, words), 1) for _ in range(bench.shapes.prefill_prompts)]
    )


def decode_at(streams: int) -> Workload:
    async def decode(bench: Bench, rng: random.Random) -> Figures:
        """Short prompts, long replies, all at the same time."""
        prompts = [fresh_prompt(rng, bench.shapes.decode_prompt_words) for _ in range(streams)]
        calls = [bench.client.chat(prompt, bench.shapes.decode_tokens) for prompt in prompts]
        return decode_figures(await asyncio.gather(*calls))

    return decode


async def chat(bench: Bench, rng: random.Random) -> Figures:
    """Conversations at the same time; each sends its next turn as soon as it has its reply."""
    shapes = bench.shapes
    words = bench.sizing.words_of(shapes.turn_tokens)
    asked = [[random_words(rng, words) for _ in range(shapes.turns)] for _ in range(shapes.chats)]
    converse = _whole_conversation if bench.stateless else _in_a_session
    return chat_figures(await asyncio.gather(*(converse(bench, turns) for turns in asked)))


async def _in_a_session(bench: Bench, turns: list[str]) -> list[Reply]:
    """The server keeps the history: only what is new is sent."""
    session_id = f"bench-{secrets.token_hex(8)}"
    replies = []
    for number, text in enumerate(turns):
        session: dict[str, Any] = {"id": session_id} if number else {"id": session_id, "create": True}
        messages: list[Message] = [{"role": "user", "content": text}]
        replies.append(await bench.client.chat(messages, bench.shapes.reply_tokens, session))
    await bench.client.close_session(session_id)
    return replies


async def _whole_conversation(bench: Bench, turns: list[str]) -> list[Reply]:
    messages: list[Message] = []
    replies = []
    for text in turns:
        messages.append({"role": "user", "content": text})
        replies.append(await bench.client.chat(messages, bench.shapes.reply_tokens))
        messages.append({"role": "assistant", "content": replies[-1].text})
    return replies
