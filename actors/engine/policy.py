"""Scheduling choices as pure functions: they choose, the owners act."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from actors.engine.request import Request
from actors.engine.settings import EngineSettings

PATIENCE = 8
"""A prompt stays behind shorter ones that come later for so many times what it would take the shared half by itself."""


def ageing(settings: EngineSettings) -> int:
    """Tokens that a step of waiting counts for: constant, so that no two prompts change places only by waiting."""
    return max(1, (settings.mixed_prefill_tokens or settings.max_step_tokens) // (2 * PATIENCE))


def share_prefill(remaining: Sequence[int], waited: Sequence[int], budget: int) -> list[int]:
    """Split a step's prefill budget (tokens) over prompts in order of arrival (rule P7).

    The oldest is sure of half, so that it always advances. The rest goes to whoever needs the least then, the oldest
    among them: a short prompt is not stuck behind a long one, and of equal ones the first is done before the second is
    begun (shortest remaining processing time first, Schrage 1968, for the half that is shared). What each has `waited`
    (in tokens, `ageing` for each step) is taken off what it needs: whoever comes when a prompt has waited for its whole
    length comes behind it, however short.
    """
    grants = [0] * len(remaining)
    if not remaining:
        return grants
    oldest_share = budget if len(remaining) == 1 else (budget + 1) // 2
    grants[0] = min(remaining[0], oldest_share)
    left = budget - grants[0]
    for index in sorted(range(len(remaining)), key=lambda i: (remaining[i] - grants[i] - waited[i], i)):
        more = min(remaining[index] - grants[index], left)
        grants[index] += more
        left -= more
    return grants


def victim(running: Iterable[Request]) -> Request | None:
    """Whom to preempt: lowest priority, then latest arrival (rule K4)."""
    return max(running, key=lambda request: (-request.submit.priority, request.uid), default=None)
