"""Events on their way to the ingresses: one buffer each, handed over as one frame per poll.

A poll acknowledges the frame before it; until then that frame is kept and sent again if asked, so that a poll whose
answer got lost costs nothing. A poll is also the ingress's sign of life: without one for `lease_s` it counts as dead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from actors.messages import Event, Reply
from actors.wire import encode_frame

KEEP_LEASES = 20
"""How many leases the events of an ingress that counts as dead are kept."""


@dataclass(slots=True)
class _Peer:
    """What one ingress has still to get."""

    last_poll_at: float
    events: list[Event] = field(default_factory=list)
    frame_number: int = 0
    unacknowledged: bytes = b""
    wake: Callable[[], None] | None = None
    counted_dead: bool = False


class Outbox:
    """Thread-safe. `publish` is called by the loop, the rest by the actor's event loops."""

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s = lease_s
        self._clock = clock
        self._lock = threading.Lock()
        self._peers: dict[str, _Peer] = {}
        self._asks: dict[int, Future[object]] = {}
        self._next_ask = 1
        self._frames = 0
        """Frames made so far, for whomever: an ingress that was forgotten and comes back never meets a number again."""

    # -- the loop's side -------------------------------------------------------------------------------------------

    def publish(self, events: Iterable[Event]) -> None:
        """Hand out a step's events, and wake whoever waits for them."""
        woken: list[Callable[[], None]] = []
        replies: list[tuple[Future[object], object]] = []
        with self._lock:
            for event in events:
                if isinstance(event, Reply):
                    future = self._asks.pop(event.ask, None)
                    if future is not None:
                        replies.append((future, event.value))
                    continue
                peer = self._peer(event.ingress)
                peer.events.append(event)
                if peer.wake is not None:
                    woken.append(peer.wake)
                    peer.wake = None
        for wake in woken:
            wake()
        for future, value in replies:
            future.set_result(value)

    def take_dead(self) -> list[str]:
        """Ingresses whose lease has run out since the last look.

        Their events are kept for `KEEP_LEASES` leases: one that only stood still for a while would else wait for ever
        for an end that it was never given.
        """
        now = self._clock()
        dead = []
        with self._lock:
            for name, peer in list(self._peers.items()):
                silent_s = now - peer.last_poll_at
                if silent_s > self._lease_s and not peer.counted_dead:
                    peer.counted_dead = True
                    dead.append(name)
                elif silent_s > self._lease_s * KEEP_LEASES:
                    del self._peers[name]
        return dead

    def figures(self) -> dict[str, int]:
        """Ingresses known, events they have still to get (those of an unacknowledged frame count as one), and control
        messages that have no answer yet."""
        with self._lock:
            events = sum(len(peer.events) + bool(peer.unacknowledged) for peer in self._peers.values())
            return {"ingresses": len(self._peers), "events": events, "asks": len(self._asks)}

    @property
    def has_peers(self) -> bool:
        return bool(self._peers)

    # -- the actor's side ------------------------------------------------------------------------------------------

    def new_ask(self) -> tuple[int, Future[object]]:
        """A number for a control message, and the future that its reply will fill."""
        future: Future[object] = Future()
        with self._lock:
            ask = self._next_ask
            self._next_ask += 1
            self._asks[ask] = future
        return ask, future

    def expect(self, ingress: str) -> None:
        """An ingress submitted something: give it time to poll."""
        with self._lock:
            peer = self._peer(ingress)
            if peer.counted_dead:
                peer.counted_dead, peer.last_poll_at = False, self._clock()

    def take(self, ingress: str, acknowledged: int, wake: Callable[[], None]) -> bytes | None:
        """The next frame for this ingress, or None: then `wake` will be called, once, when there is one."""
        with self._lock:
            peer = self._peer(ingress)
            peer.counted_dead, peer.last_poll_at = False, self._clock()
            if peer.unacknowledged and acknowledged < peer.frame_number:
                return peer.unacknowledged
            peer.unacknowledged = b""
            if not peer.events:
                peer.wake = wake
                return None
            self._frames += 1
            peer.frame_number = self._frames
            peer.unacknowledged = encode_frame(peer.frame_number, peer.events)
            peer.events = []
            return peer.unacknowledged

    def fail_asks(self, error: Exception) -> None:
        """Nobody will answer any more (shutdown)."""
        with self._lock:
            asks, self._asks = self._asks, {}
        for future in asks.values():
            future.set_exception(error)

    def _peer(self, ingress: str) -> _Peer:
        peer = self._peers.get(ingress)
        if peer is None:
            peer = self._peers[ingress] = _Peer(last_poll_at=self._clock())
        return peer
