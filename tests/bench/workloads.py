"""The workloads, each measured once per call against a running server."""

from __future__ import annotations

import asyncio
import random
import secrets
from typing import Any

from tests.bench.client import Message
from tests.bench.crowds import abort_storm, shared_prompt
from tests.bench.figures import Figures, Reply, chat_figures, decode_figures, prefill_figures
from tests.bench.idle import beside_idle_sessions
from tests.bench.shapes import Bench, Shapes, Workload
from tests.bench.texts import fresh_prompt, random_words

__all__ = ["NAMES", "NEED_REMORA", "Bench", "Shapes", "Workload", "workloads"]

NAMES = ("prefill", "decode", "chat", "long_chat", "idle_sessions", "abort_storm", "shared_prompt")
NEED_REMORA = frozenset({"idle_sessions"})
"""Workloads that cannot be asked of another server: it keeps no sessions."""


def workloads(names: tuple[str, ...], shapes: Shapes) -> dict[str, Workload]:
    """By the name under which the results are reported: `decode` is one for each concurrency."""
    found: dict[str, Workload] = {}
    if "prefill" in names:
        found["prefill"] = prefill
    if "decode" in names:
        for streams in shapes.decode_concurrency:
            found[f"decode_{streams}"] = decode_at(streams)
    if "chat" in names:
        found["chat"] = chat_of(shapes.chats, shapes.turns, shapes.turn_tokens, shapes.reply_tokens)
    if "long_chat" in names:
        sizes = (shapes.long_chats, shapes.long_turns, shapes.long_turn_tokens, shapes.long_reply_tokens)
        found["long_chat"] = chat_of(*sizes)
    if "idle_sessions" in names:
        found["idle_sessions"] = beside_idle_sessions(
            decode_at(shapes.beside_streams),
            chat_of(shapes.chats, shapes.turns, shapes.turn_tokens, shapes.reply_tokens),
        )
    if "abort_storm" in names:
        found["abort_storm"] = abort_storm
    if "shared_prompt" in names:
        found["shared_prompt"] = shared_prompt
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


def chat_of(chats: int, turns: int, turn_tokens: int, reply_tokens: int) -> Workload:
    async def chat(bench: Bench, rng: random.Random) -> Figures:
        """Conversations at the same time; each sends its next turn as soon as it has its reply."""
        words = bench.sizing.words_of(turn_tokens)
        asked = [[random_words(rng, words) for _ in range(turns)] for _ in range(chats)]
        converse = _whole_conversation if bench.stateless else _in_a_session
        held = [converse(bench, number, texts, reply_tokens) for number, texts in enumerate(asked)]
        return chat_figures(await asyncio.gather(*held))

    return chat


async def _in_a_session(bench: Bench, number: int, turns: list[str], reply_tokens: int) -> list[Reply]:
    """The server keeps the history: only what is new is sent."""
    session_id = f"bench-{number}-{secrets.token_hex(8)}"
    replies: list[Reply] = []
    for text in turns:
        session: dict[str, Any] = {"id": session_id} if replies else {"id": session_id, "create": True}
        messages: list[Message] = [{"role": "user", "content": text}]
        replies.append(await bench.client.chat(messages, reply_tokens, session))
    await bench.client.close_session(session_id)
    return replies


async def _whole_conversation(bench: Bench, number: int, turns: list[str], reply_tokens: int) -> list[Reply]:
    messages: list[Message] = []
    replies = []
    for text in turns:
        messages.append({"role": "user", "content": text})
        replies.append(await bench.client.chat(messages, reply_tokens, chat_number=number))
        messages.append({"role": "assistant", "content": replies[-1].text})
    return replies
