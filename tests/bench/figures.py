"""What a benchmark measures: one reply's times and counts, and the statistics over many."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Figures = dict[str, float]
"""What one repeat of a workload found: name (with its unit) → value."""


class BenchError(Exception):
    """The measurement cannot be taken. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answered request. `sent`, `first` and `ended` are seconds of one monotonic clock; `first` is when the first
    text came. `cached_tokens` None: the server does not say. `arrivals`: when each piece of text came."""

    sent: float
    first: float
    ended: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    text: str = ""
    arrivals: tuple[float, ...] = ()

    @property
    def ttft_s(self) -> float:
        return self.first - self.sent

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens computed (not those found in a cache) per second until the first token."""
        return (self.prompt_tokens - (self.cached_tokens or 0)) / self.ttft_s

    @property
    def decode_rate(self) -> float:
        """Tokens after the first, per second. Raises BenchError when there was nothing to time."""
        if self.completion_tokens < 2 or self.ended <= self.first:
            raise BenchError(f"{self.completion_tokens} tokens came in one piece: there is no rate in that")
        return (self.completion_tokens - 1) / (self.ended - self.first)


@dataclass(frozen=True, slots=True)
class Summary:
    """One figure over the repeats."""

    median: float
    least: float
    most: float
    values: tuple[float, ...]


def summarise(repeats: Sequence[Figures]) -> dict[str, Summary]:
    """Every figure over all repeats. Each repeat names the same figures."""
    found = {}
    for name in repeats[0]:
        values = tuple(figures[name] for figures in repeats)
        found[name] = Summary(statistics.median(values), min(values), max(values), values)
    return found


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed (nearest rank). `values` is not empty."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def prefill_figures(replies: Sequence[Reply]) -> Figures:
    """Of prompts sent one after the other."""
    return {
        "prefill_tok_s": statistics.median(reply.prefill_rate for reply in replies),
        "ttft_p50_s": statistics.median(reply.ttft_s for reply in replies),
        "prompt_tokens": statistics.median(reply.prompt_tokens for reply in replies),
        "cached_tokens": statistics.median(reply.cached_tokens or 0 for reply in replies),
    }


def decode_figures(replies: Sequence[Reply]) -> Figures:
    """Of replies streamed at the same time.

    The rate is the sum of the streams' own rates between their first and last token. `overlap` is the share of the
    longest stream's time in which all of them ran: far below 1, the sum is more than the server ever did at once.
    """
    together = min(reply.ended for reply in replies) - max(reply.first for reply in replies)
    longest = max(reply.ended - reply.first for reply in replies)
    wall = max(reply.ended for reply in replies) - min(reply.sent for reply in replies)
    tokens = sum(reply.completion_tokens for reply in replies)
    return {
        "decode_tok_s": sum(reply.decode_rate for reply in replies),
        "overlap": max(0.0, together) / longest,
        "with_prefill_tok_s": tokens / wall,
        "ttft_p50_s": statistics.median(reply.ttft_s for reply in replies),
        "output_tokens": tokens,
    }


def chat_figures(chats: Sequence[Sequence[Reply]]) -> Figures:
    """Of conversations held at the same time; `chats[i][j]` is turn j + 1 of chat i."""
    replies = [reply for chat in chats for reply in chat]
    waits = [reply.ttft_s for reply in replies]
    wall = max(reply.ended for reply in replies) - min(reply.sent for reply in replies)
    prompt_tokens = sum(reply.prompt_tokens for reply in replies)
    tokens = sum(reply.completion_tokens for reply in replies)
    figures = {
        "output_tok_s": tokens / wall,
        "ttft_p50_s": statistics.median(waits),
        "ttft_p99_s": quantile(waits, 0.99),
        "output_tokens": tokens,
        "prompt_tokens": prompt_tokens,
    }
    figures.update(_cached_ratio(replies))
    for number, turn in enumerate(zip(*chats, strict=True), 1):
        waits = [reply.ttft_s for reply in turn]
        figures[f"ttft_p50_turn_{number}_s"] = statistics.median(waits)
        figures[f"ttft_p99_turn_{number}_s"] = quantile(waits, 0.99)
    return figures


def crowd_figures(replies: Sequence[Reply]) -> Figures:
    """Of requests that were sent at the same time."""
    waits = [reply.ttft_s for reply in replies]
    wall = max(reply.ended for reply in replies) - min(reply.sent for reply in replies)
    prompt_tokens = sum(reply.prompt_tokens for reply in replies)
    figures = {
        "output_tok_s": sum(reply.completion_tokens for reply in replies) / wall,
        "ttft_p50_s": statistics.median(waits),
        "ttft_p99_s": quantile(waits, 0.99),
        "prompt_tokens": prompt_tokens,
    }
    return figures | _cached_ratio(replies)


def gap_figures(replies: Sequence[Reply]) -> Figures:
    """`crowd_figures`, and the time between two pieces of text of one reply. Raises BenchError when there is none."""
    gaps = [later - earlier for one in replies for earlier, later in itertools.pairwise(one.arrivals)]
    if not gaps:
        raise BenchError("no reply came in more than one piece: there are no gaps in that")
    spans = {"gap_p50_s": quantile(gaps, 0.5), "gap_p99_s": quantile(gaps, 0.99), "gap_most_s": max(gaps)}
    return {**crowd_figures(replies), **spans}


def _cached_ratio(replies: Sequence[Reply]) -> Figures:
    """The share of prompt tokens found in a cache; nothing when the server does not say."""
    if any(reply.cached_tokens is None for reply in replies):
        return {}
    found = sum(reply.cached_tokens or 0 for reply in replies)
    return {"cached_ratio": found / sum(reply.prompt_tokens for reply in replies)}
