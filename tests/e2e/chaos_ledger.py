"""What a chaos run has seen: faults, errors that clients heard, and how long sessions took to be answered again."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass, field

LOST = "acknowledged turns lost"
DUPLICATED = "turns that ran twice"
NO_HISTORY = "turns that ran without their history"
WRONG_TEXT = "wrong texts"
BROKEN_STREAM = "streams with a gap or a repetition"
NOT_REPLAYED = "repeated turns that ran again"
NOT_MENDED = "errors that no repetition mends"
STUCK = "requests that were never answered"
LEAKED = "leaked at the end"
FAULTS = (LOST, DUPLICATED, NO_HISTORY, WRONG_TEXT, BROKEN_STREAM, NOT_REPLAYED, NOT_MENDED, STUCK, LEAKED)
"""Each must be 0."""


@dataclass
class Event:
    """Something that fate did. `touched`: clients that have not been answered since."""

    kind: str
    at: float
    touched: set[str]


@dataclass
class Ledger:
    """`took_s`: how long whole turns took, repetitions included. `recovered_s[kind]`: from an event to the first
    answered turn of each client that it touched."""

    done: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    faults: list[tuple[str, str]] = field(default_factory=list)
    events: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)
    recovered_s: dict[str, list[float]] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """Clients, and the worker that answered each last."""
    began_at: float = field(default_factory=time.monotonic)
    _waiting: list[Event] = field(default_factory=list)

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began_at:7.1f} s  {text}", file=sys.stderr, flush=True)

    def fault(self, kind: str, text: str) -> None:
        self.faults.append((kind, text))
        self.say(f"FAULT {kind}: {text}")

    def struck(self, kind: str, touched: set[str]) -> None:
        self.events[kind] += 1
        self._waiting.append(Event(kind, time.monotonic(), touched))
        self.say(f"{kind} ({len(touched)} clients)")

    def answered(self, client: str, worker: str | None, took_s: float) -> None:
        """A turn or request of this client was answered with success."""
        now = time.monotonic()
        self.took_s.append(took_s)
        if worker:
            self.owners[client] = worker
        for event in self._waiting:
            if client in event.touched:
                event.touched.discard(client)
                self.recovered_s.setdefault(event.kind, []).append(now - event.at)
        self._waiting = [event for event in self._waiting if event.touched]

    def owned_by(self, worker: str) -> set[str]:
        return {client for client, owner in self.owners.items() if owner == worker}

    def counted(self) -> dict[str, int]:
        """Faults by kind, those that did not happen too."""
        found = Counter(kind for kind, _ in self.faults)
        return {kind: found[kind] for kind in FAULTS}
