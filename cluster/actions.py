"""What can be done about workers: decided by pure functions, carried out by the fleet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start one more worker."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Give this worker no new sessions, and end it when it has nothing to do."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Give this worker no new sessions, but let it go on with those that are pinned to its weights."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End this worker now."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Take over a worker that runs but is not in the table."""

    worker_id: str


Action = Spawn | Drain | Keep | Kill | Adopt
