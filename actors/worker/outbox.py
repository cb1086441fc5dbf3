"""Events on their way to the ingresses: one buffer each, handed over as one frame per poll.

A poll acknowledges the frame before it; until then that frame is kept and sent again if asked, so that a poll whose
answer got lost costs nothing. A poll is also the ingress's sign of life: without one for `lease_s` it counts as dead.

A frame costs both sides far more than what is in it. So tokens of streams that have begun gather for `linger_s` before
they leave; first tokens and ends leave at once, with all there is. The tokens of one attempt in a frame are one event.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from actors.messages import Event, PromptScore, Reply, StepTokens, TokenLogprobs, Tokens
from actors.wire import encode_frame

KEEP_LEASES = 20
"""How many leases the events of an ingress that counts as dead are kept."""


@dataclass(slots=True)
class _Peer:
    """What one ingress has still to get."""

    last_poll_at: float
    events: list[Event] = field(default_factory=list)
    urgent: bool = False
    """There is more among the events than tokens of streams that have begun."""
    frame_number: int = 0
    frame_at: float = -math.inf
    """When the last frame was made."""
    unacknowledged: bytes = b""
    wake: Callable[[], None] | None = None
    patient: bool = False
    """It is woken for urgent events only."""
    counted_dead: bool = False


class Outbox:
    """Thread-safe. `publish` is called by the loop, the rest by the actor's event loops."""

    def __init__(self, lease_s: float, clock: Callable[[], float], linger_s: float = 0.0) -> None:
        self._lease_s = lease_s
        self._linger_s = linger_s
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
                peer.urgent = peer.urgent or _urgent(event)
                if peer.wake is not None and (peer.urgent or not peer.patient):
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

    def lingers_s(self, ingress: str) -> float:
        """For how long what is not urgent should gather yet before it is taken."""
        with self._lock:
            peer = self._peers.get(ingress)
            return 0.0 if peer is None else peer.frame_at + self._linger_s - self._clock()

    def take(self, ingress: str, acknowledged: int, wake: Callable[[], None], *, patient: bool = False) -> bytes | None:
        """The next frame for this ingress, or None: then `wake` will be called, once, when there is one. `patient`:
        not for what may linger."""
        with self._lock:
            peer = self._peer(ingress)
            peer.counted_dead, peer.last_poll_at = False, self._clock()
            if peer.unacknowledged and acknowledged < peer.frame_number:
                return peer.unacknowledged
            peer.unacknowledged = b""
            if not peer.events or (patient and not peer.urgent):
                peer.wake, peer.patient = wake, patient
                return None
            self._frames += 1
            peer.frame_number, peer.frame_at = self._frames, self._clock()
            peer.unacknowledged = encode_frame(peer.frame_number, gathered(peer.events))
            peer.events, peer.urgent, peer.wake = [], False, None
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


def _urgent(event: Event) -> bool:
    """Whether it is more than tokens of streams that have begun."""
    return type(event) is not StepTokens and (type(event) is not Tokens or not event.index)


@dataclass(slots=True)
class _Run:
    """Tokens of one attempt that follow one another: one event to be, with the fields of `Tokens`."""

    ingress: str
    key: str
    index: int
    ids: list[int]
    prompt: bytes
    logprobs: list[TokenLogprobs]
    prompt_scores: tuple[PromptScore, ...]

    def event(self) -> Tokens:
        ids, logprobs = tuple(self.ids), tuple(self.logprobs)
        return Tokens(self.ingress, self.key, self.index, ids, self.prompt, logprobs, self.prompt_scores)


def gathered(events: Iterable[Event]) -> list[Event]:
    """The same events, those tokens that follow one another in one attempt being one event."""
    told: list[Event | _Run] = []
    runs: dict[str, _Run] = {}
    for event in events:
        if type(event) is StepTokens:
            for key, index, token in zip(event.keys, event.indexes, event.ids, strict=True):
                run = runs.get(key)
                if run is not None and run.index + len(run.ids) == index and not run.logprobs:
                    run.ids.append(token)
                else:
                    run = runs[key] = _Run(event.ingress, key, index, [token], b"", [], ())
                    told.append(run)
        elif type(event) is Tokens:
            run = runs.get(event.key)
            if run is not None and _follows(run, event):
                run.ids += event.ids
                run.logprobs += event.logprobs
            else:
                ids, logprobs = list(event.ids), list(event.logprobs)
                run = _Run(event.ingress, event.key, event.index, ids, event.prompt, logprobs, event.prompt_scores)
                runs[event.key] = run
                told.append(run)
        else:
            told.append(event)
    return [one.event() if isinstance(one, _Run) else one for one in told]


def _follows(run: _Run, event: Tokens) -> bool:
    """Whether an event can be told with those before it: log probabilities are those of the last ids, without a gap."""
    if event.index != run.index + len(run.ids) or event.prompt or event.prompt_scores:
        return False
    return not run.logprobs or len(event.logprobs) == len(event.ids)
