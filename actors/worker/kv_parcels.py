"""KV on its way to another worker (rule T5): packed here and fetched, or brought here and unpacked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

logger = logging.getLogger("remora.worker")

KEEP_S = 60.0
"""A parcel that nobody has come for by then is thrown away: whoever moved the session has died, or has had enough."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Pages in the exchange layout, in order, in `pieces` of whole pages. `kv_format` says what they mean."""

    kv_format: str
    pieces: tuple[bytes, ...] = field(repr=False)


class Parcels:
    """Parcels by name. Used by the copying thread and by whoever fetches and brings."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._parcels: dict[str, tuple[float, Parcel]] = {}

    def __len__(self) -> int:
        with self._changed:
            self._throw_away_old()
            return len(self._parcels)

    def put(self, name: str, parcel: Parcel) -> None:
        with self._changed:
            self._throw_away_old()
            self._parcels[name] = (self._clock(), parcel)
            self._changed.notify_all()

    def take(self, name: str, wait_s: float = 0.0) -> Parcel | None:
        """The parcel, which is gone from here then; None if it has not come after `wait_s`."""
        with self._changed:
            self._throw_away_old()
            self._changed.wait_for(lambda: name in self._parcels, wait_s)
            _, parcel = self._parcels.pop(name, (0.0, None))
            return parcel

    def _throw_away_old(self) -> None:
        oldest = self._clock() - KEEP_S
        for name in [name for name, (since, _) in self._parcels.items() if since < oldest]:
            logger.warning("nobody came for KV that was to move to another worker")
            del self._parcels[name]
