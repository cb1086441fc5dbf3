"""Scheduling choices as pure functions: they choose, the owners act."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from actors.engine.request import Request
from actors.engine.settings import EngineSettings

PATIENCE = 8
"""A prompt comes behind shorter ones that come later for so many times what the oldest's half would take for it."""


def ageing(settings: EngineSettings) -> float:
    """Tokens that a step of waiting counts for: constant, so that no two prompts change places only by waiting."""
    return (settings.mixed_prefill_tokens or settings.max_step_tokens) / (2 * PATIENCE)


def share_prefill(remaining: Sequence[int], waited: Sequence[float], budget: int) -> list[int]:
    """Split a step's prefill budget (tokens) over prompts in order of arrival (rule P7).

    The oldest is sure of half, so that it always advances. Of the rest, one half goes to whoever needs the least, the
    oldest among them: a short prompt is not stuck behind long ones, however many have waited, and of equal ones the
    first is done before the second is begun (shortest remaining processing time first, Schrage 1968). The other half
    goes the same way, but what each has `waited` (in tokens, `ageing` for each step) is taken off what it needs:
    whoever comes when a prompt has waited for its whole length comes behind it there, however short.
    """
    if not remaining:
        return []
    grants = [0] * len(remaining)
    oldest_share = budget if len(remaining) == 1 else (budget + 1) // 2
    grants[0] = min(remaining[0], oldest_share)
    _give(grants, remaining, waited, (budget - grants[0]) // 2)
    _give(grants, remaining, [0.0] * len(remaining), budget - sum(grants))
    return grants


def _give(grants: list[int], remaining: Sequence[int], waited: Sequence[float], budget: int) -> None:
    """Add so much to `grants`: to whoever needs the least, less what it has waited, then to the next."""
    for index in sorted(range(len(grants)), key=lambda i: (remaining[i] - grants[i] - waited[i], i)):
        more = min(remaining[index] - grants[index], budget)
        grants[index] += more
        budget -= more


def victim(running: Iterable[Request]) -> Request | None:
    """Whom to preempt: lowest priority, then latest arrival (rule K4)."""
    return max(running, key=lambda request: (-request.submit.priority, request.uid), default=None)
