"""A worker on simulated time: the real loop, mailbox, outbox, engine and toy runner, without their threads.

Only what the shell does off the loop is replaced (`tests.sim.effects`): it takes simulated time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from actors.engine.effects import EffectResult
from actors.engine.engine import Engine
from actors.engine.invariants import check
from actors.engine.request import RequestState
from actors.engine.settings import EngineSettings
from actors.messages import Event, Reply, Submit, Tokens, singly
from actors.runner.toy import ToyRunner
from actors.worker.loop import LEASE_LOOK_S, Loop
from actors.worker.mailbox import Mailbox
from actors.worker.outbox import Outbox
from tests.sim.effects import SimEffects
from tests.sim.network import Network
from tests.sim.store import SimStore
from tests.sim.timeline import Timeline

POLL_S = 0.2
"""How long a poll waits for events."""


PARKED = {RequestState.WAITING_KV: "KV was read", RequestState.WAITING_GRAMMAR: "a grammar was compiled"}


@dataclass(frozen=True)
class Poll:
    """An ingress asks for its events. `number` tells polls apart."""

    number: int
    acknowledged: int


@dataclass(frozen=True)
class Frame:
    """The answer to a poll; empty when nothing came."""

    number: int
    data: bytes


@dataclass(frozen=True)
class Received:
    """The worker has this attempt: the answer to the call that submitted it."""

    key: str


@dataclass(frozen=True)
class Question:
    """A control message, and where its answer goes: a call that waits for its result."""

    message: Any
    answered: Callable[[object], None]


@dataclass(frozen=True)
class Answer:
    """The result of a call, on its way back to the caller."""

    answered: Callable[[object], None]
    value: object


class WitnessedOutbox(Outbox):
    """E1: one end per attempt, no token after it, no gap before it; E5: usage counts what was delivered."""

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        super().__init__(lease_s, clock)
        self.ended: set[str] = set()
        self._tokens: Counter[str] = Counter()

    def publish(self, events: Iterable[Event]) -> None:
        events = list(events)
        for event in singly(events):
            if isinstance(event, Reply):
                continue
            assert event.key not in self.ended, f"{event.key} has ended, and now {event}"
            if isinstance(event, Tokens):
                assert event.index == self._tokens[event.key], f"a gap before {event}"
                self._tokens[event.key] += len(event.ids)
            else:
                assert event.completion_tokens == self._tokens[event.key], f"{event} miscounts"
                self.ended.add(event.key)
        super().publish(events)


class SimWorker:
    def __init__(
        self,
        name: str,
        timeline: Timeline,
        network: Network,
        store: SimStore,
        *,
        runner: ToyRunner,
        settings: EngineSettings,
        step_s: float,
        lease_s: float,
        random: Random,
    ) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.effects = SimEffects(timeline, store, runner, random, self._deliver)
        self.ended_while: Counter[str] = Counter()
        """Ends that met a request while its KV was being read or its grammar compiled."""
        self.engine = Engine(settings)
        self.outbox = WitnessedOutbox(lease_s, lambda: timeline.now)
        self._mailbox = Mailbox()
        self._loop = Loop(self.engine, runner, self._mailbox, self.outbox, self.effects.perform, lambda: timeline.now)
        self._loop.check_invariants = True
        self._timeline = timeline
        self._network = network
        self._step_s = step_s
        self._not_before = 0.0
        self._due: float | None = None
        self._unread = False
        self._held: list[tuple[str, Any]] = []
        network.attach(name, self._receive)

    # -- life and death --------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL: nothing of it is left, and nobody is told."""
        self.alive = False
        self.effects.stop()
        self._network.detach(self.name)

    def freeze(self) -> None:
        """SIGSTOP: messages pile up unread."""
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        self._due = None
        held, self._held = self._held, []
        for sender, message in held:
            self._receive(sender, message)
        self._wake()

    @property
    def busy(self) -> bool:
        """Whether something will change here without a message from outside."""
        return self.present and bool(self._unread or self.engine.has_work or self.engine.uncommitted)

    @property
    def present(self) -> bool:
        return self.alive and not self.frozen

    # -- messages --------------------------------------------------------------------------------------------------

    def _receive(self, sender: str, message: Any) -> None:
        if self.frozen:
            self._held.append((sender, message))
            return
        match message:
            case Poll():
                self._answer_poll(sender, message)
            case Question():
                number, future = self.outbox.new_ask()
                future.add_done_callback(lambda done: self._reply(sender, message, done))
                self._put(replace(message.message, ask=number))
            case Submit():
                self.outbox.expect(sender)
                self._network.send(self.name, sender, Received(message.key))
                self._put(message)
            case _:
                self._put(message)

    def _put(self, letter: Any) -> None:
        self._mailbox.put(letter)
        self._unread = True
        self._wake()

    def _deliver(self, result: EffectResult) -> None:
        if not self.alive:
            return
        if self.frozen:
            self._held.append(("shell", result))
        else:
            self._put(result)

    def _reply(self, asker: str, question: Question, done: Future[object]) -> None:
        value = done.result()
        self._network.send(self.name, asker, Answer(question.answered, value))

    def _answer_poll(self, ingress: str, poll: Poll) -> None:
        answered = False

        def look(*, last: bool) -> None:
            nonlocal answered
            if answered or not self.present:
                return
            frame = self.outbox.take(ingress, poll.acknowledged, lambda: look(last=False))
            if frame is not None or last:
                answered = True
                self._network.send(self.name, ingress, Frame(poll.number, frame or b""), quiet=True)

        look(last=False)
        if not answered:
            self._timeline.after(POLL_S, lambda: look(last=True))

    # -- the loop --------------------------------------------------------------------------------------------------

    def _wake(self, at: float | None = None) -> None:
        """Have the loop turn at `at`, or as soon as the step under way allows."""
        when = max(self._not_before, self._timeline.now if at is None else at)
        if self._due is None or when < self._due:
            self._due = when
            self._timeline.at(when, lambda: self._turn(when))

    def _turn(self, when: float) -> None:
        if not self.present or self._due != when:
            return
        self._due, self._unread = None, False
        steps = self.engine.core.totals.steps
        parked = [(request, request.state) for request in self.engine.core.requests.all() if request.state in PARKED]
        self._mailbox.wake()
        self._loop.turn()
        check(self.engine)
        self.ended_while.update(PARKED[state] for request, state in parked if request.state is RequestState.ENDED)
        stepped = self.engine.core.totals.steps > steps or bool(self.engine.uncommitted)
        self._not_before = self._timeline.now + (self._step_s if stepped else 0.0)
        self._wake_again()

    def _wake_again(self) -> None:
        now = self._timeline.now
        waits = [now + LEASE_LOOK_S] if self.outbox.has_peers else []
        if self.engine.has_work or self.engine.uncommitted:
            waits.append(now + self._step_s)
        deadline = self.engine.next_deadline()
        if deadline is not None:
            waits.append(max(now + 0.001, deadline))
        if waits:
            self._wake(min(waits))
