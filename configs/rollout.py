"""How workers are replaced by others: with new settings, weights or code, or because somebody asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RolloutConfig:
    """One after the other, each only when enough others are ready.

    `max_surge`: workers above the wanted number while some are replaced, those that are being drained included.
    `max_unavailable`: how many fewer than the wanted number may be ready meanwhile. Where there is no room for one
    more worker (every GPU is taken), set `max_surge` to 0 and `max_unavailable` to 1: the old one ends first.
    `max_failed_starts`: after so many starts on end that failed, the rollout stops: workers of before serve on, until
    one does start, or a rollout is asked for again.
    """

    max_surge: int = 1
    max_unavailable: int = 0
    max_failed_starts: int = 3


def complaints(rollout: RolloutConfig) -> Iterator[str]:
    """One line for each setting that cannot work; each begins with the setting's path."""
    for name in ("max_surge", "max_unavailable"):
        if getattr(rollout, name) < 0:
            yield f"rollout.{name}: {getattr(rollout, name)}; it must be 0 or more"
    if not (rollout.max_surge or rollout.max_unavailable):
        yield "rollout.max_surge: 0, and max_unavailable 0: then no worker could ever be replaced; one must be above 0"
    if rollout.max_failed_starts < 1:
        yield f"rollout.max_failed_starts: {rollout.max_failed_starts}; it must be at least 1"
