"""An ingress on simulated time: a small model of what `actors.ingress` does between a client and the workers.

It places a call (by memory, else by the pool), submits it, polls for events, tries again elsewhere until the first
token, aborts by attempt when the client leaves, and notices gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from actors.messages import Abort, AbortReport, Finished, Outcome, Reason, Stage, Submit, Tokens, TurnOf
from actors.ports import NoWorker
from actors.records import SessionRecord, SessionUnknown
from actors.wire import decode_frame
from tests.sim.network import Network
from tests.sim.pool import SimPool
from tests.sim.timeline import Timeline
from tests.sim.worker import POLL_S, Answer, Frame, Poll, Question, Received

REPOLL_S = POLL_S + 0.1
"""A poll without an answer for so long is sent again."""
PLACE_S = 0.001
BACKOFF_S = 0.05
SUBMIT_PATIENCE_S = 0.6
MAX_TRIES = 8
_ELSEWHERE = (Reason.WORKER_LOST, Reason.WORKER_DRAINING)


@dataclass
class Call:
    """What a client asked for, and all it has heard. `submit` has neither key nor turn: each attempt has its own.

    `turn`: fields of TurnOf that the caller decides, with `session_id`; None for a plain request.
    """

    name: str
    submit: Submit
    turn: dict[str, Any] | None
    ids: list[int] = field(default_factory=list)
    ends: list[Finished] = field(default_factory=list)
    left: bool = False
    """The client has gone; nobody hears an end any more."""
    tries: int = 0
    key: str = ""
    worker: str = ""
    got_there: bool = False
    from_memory: bool = False

    @property
    def over(self) -> bool:
        return self.left or bool(self.ends)


@dataclass
class Pump:
    """One poll loop. `number`: of the poll that waits for its answer; `heard_at`: when the last one came."""

    worker: str
    number: int = 0
    acknowledged: int = 0
    heard_at: float = 0.0
    alive: bool = True


class SimIngress:
    def __init__(
        self,
        name: str,
        timeline: Timeline,
        network: Network,
        pool: SimPool,
        say: Callable[[str], None],
        *,
        patience_s: float,
    ) -> None:
        self.name = name
        self.alive = True
        self.calls: dict[str, Call] = {}
        self._lines: dict[str, Call] = {}
        self._pumps: dict[str, Pump] = {}
        self._known: dict[tuple[str, str], SessionRecord] = {}
        self._timeline = timeline
        self._network = network
        self._pool = pool
        self._say = lambda text: say(f"{name}: {text}")
        self._patience_s = patience_s
        self._plain_turn = 0
        network.attach(name, self._receive)

    # -- what clients do -------------------------------------------------------------------------------------------

    def start(self, call: Call) -> None:
        self.calls[call.name] = call
        self._place(call)

    def disconnect(self, name: str) -> None:
        """The client's socket closed: one abort, by attempt."""
        call = self.calls[name]
        if call.over:
            return
        call.left = True
        self._say(f"the client of {name} leaves after {len(call.ids)} tokens")
        self._tell_abort(call, Reason.CLIENT_DISCONNECT)

    def abort(self, what: str, **selectors: Any) -> None:
        """An explicit abort: every worker is asked, and what none knew is remembered by all (rule A5)."""
        workers = self._pool.live_workers()
        reports: list[AbortReport] = []

        def heard(value: Any) -> None:
            reports.append(value)
            if len(reports) == len(workers):
                self._aborted(what, reports, selectors)

        for worker in workers:
            question = Question(Abort(tenant="t", remember=False, **selectors), heard)
            self._network.send(self.name, worker, question, refused=lambda: heard(AbortReport()))

    def worker_gone(self, worker: str, why: str) -> None:
        """The pending poll fails: everything that ran there is lost."""
        pump = self._pumps.pop(worker, None)
        if pump is None or not self.alive:
            return
        pump.alive = False
        for call in [call for call in self._lines.values() if call.worker == worker]:
            self._lost(call, why)

    def kill(self) -> None:
        self.alive = False
        self._network.detach(self.name)
        for call in self.calls.values():
            call.left = call.left or not call.ends

    # -- placing ---------------------------------------------------------------------------------------------------

    def _place(self, call: Call) -> None:
        record = self._known.get(("t", call.turn["session_id"])) if call.turn else None
        call.from_memory = record is not None
        if record is not None:
            self._submit(call, record.owner, record)
        else:
            self._timeline.after(PLACE_S, lambda: self._ask_pool(call))

    def _ask_pool(self, call: Call) -> None:
        if call.over or not self.alive:
            return
        call.from_memory = False
        try:
            if call.turn is None:
                self._submit(call, self._spread(), None)
                return
            record = self._pool.place("t", call.turn["session_id"])
        except NoWorker:
            self._again(call)
        except SessionUnknown:
            self._end(call, self._own_end(call, Reason.SESSION_UNKNOWN, "no such session", Stage.ROUTING))
        else:
            self._known[("t", record.session_id)] = record
            self._submit(call, record.owner, record)

    def _spread(self) -> str:
        workers = self._pool.live_workers()
        if not workers:
            raise NoWorker("no worker is ready")
        self._plain_turn += 1
        return workers[self._plain_turn % len(workers)]

    def _submit(self, call: Call, worker: str, record: SessionRecord | None) -> None:
        call.tries += 1
        key = call.key = f"{self.name}/{call.name}/{call.tries}"
        call.worker, call.got_there = worker, False
        self._lines[key] = call
        self._say(f"{call.name} goes to {worker}" + (f", try {call.tries}" if call.tries > 1 else ""))
        turn = None
        if record is not None and call.turn is not None:
            turn = TurnOf(generation=record.generation, epoch=record.epoch, **call.turn)
        self._ensure_pump(worker)
        message = replace(call.submit, key=key, ingress=self.name, turn=turn)
        self._network.send(self.name, worker, message, refused=lambda: self._not_received(call, key, "it is gone"))
        self._timeline.after(SUBMIT_PATIENCE_S, lambda: self._not_received(call, key, "no answer"))

    def _not_received(self, call: Call, key: str, why: str) -> None:
        """The call that submits failed. Whether the worker saw it is unknown."""
        if not self.alive or call.key != key or call.got_there or key not in self._lines:
            return
        self._tell_abort(call, Reason.WORKER_LOST)
        self._lost(call, why)

    def _again(self, call: Call) -> None:
        """Forget where it went, and place it anew in a moment."""
        self._lines.pop(call.key, None)
        call.key = ""
        if call.turn is not None:
            self._known.pop(("t", call.turn["session_id"]), None)
        self._timeline.after(BACKOFF_S, lambda: self._ask_pool(call))

    def _lost(self, call: Call, why: str) -> None:
        self._lines.pop(call.key, None)
        if call.over:
            return
        if call.ids or call.tries >= MAX_TRIES:
            self._end(call, self._own_end(call, Reason.WORKER_LOST, why, Stage.DECODE))
        else:
            self._again(call)

    # -- events ----------------------------------------------------------------------------------------------------

    def _receive(self, sender: str, message: Any) -> None:
        match message:
            case Frame():
                self._frame(sender, message)
            case Received():
                call = self._lines.get(message.key)
                if call is not None:
                    call.got_there = True
            case Answer():
                message.answered(message.value)

    def _frame(self, worker: str, frame: Frame) -> None:
        pump = self._pumps.get(worker)
        if pump is None or not pump.alive:
            return
        pump.heard_at = self._timeline.now
        if frame.data:
            number, events = decode_frame(frame.data)
            pump.acknowledged = number
            for event in events:
                call = self._lines.get(getattr(event, "key", ""))
                if call is not None:
                    self._event(call, event)
        if frame.number == pump.number:
            self._poll(pump)

    def _event(self, call: Call, event: Any) -> None:
        call.got_there = True
        if call.left:
            if isinstance(event, Finished):
                self._lines.pop(event.key, None)
            return
        if isinstance(event, Tokens):
            if event.index > len(call.ids):
                self._tell_abort(call, Reason.WORKER_LOST)
                self._lost(call, "tokens are missing")
            else:
                call.ids.extend(event.ids[len(call.ids) - event.index :])
            return
        if event.completion_tokens > len(call.ids):
            self._lost(call, "tokens before the end are missing")
        elif self._may_repeat(call, event):
            self._again(call)
        else:
            self._end(call, event)

    def _may_repeat(self, call: Call, end: Finished) -> bool:
        if call.ids or call.tries >= MAX_TRIES:
            return False
        old_news = call.from_memory and end.reason in (Reason.SESSION_UNKNOWN, Reason.SESSION_CLOSING)
        return end.redirect or end.reason in _ELSEWHERE or old_news

    def _end(self, call: Call, end: Finished) -> None:
        self._lines.pop(call.key, None)
        assert not call.over, f"a second end of {call.name}: {end}"
        call.ends.append(end)
        self._say(f"{call.name} ends: {describe(end)}")

    def _own_end(self, call: Call, reason: Reason, message: str, stage: Stage) -> Finished:
        return Finished(
            ingress=self.name,
            key=call.key,
            outcome=Outcome.ABORT,
            reason=reason,
            stage=stage,
            message=message,
            completion_tokens=len(call.ids),
        )

    def _tell_abort(self, call: Call, reason: Reason) -> None:
        if call.key:
            self._network.send(self.name, call.worker, Abort(tenant="t", keys=(call.key,), reason=reason))

    def _aborted(self, what: str, reports: list[AbortReport], selectors: dict[str, Any]) -> None:
        hit = sorted((one.rid, one.stage.value) for report in reports for one in report.hit)
        ended = sorted({rid for report in reports for rid in report.already_ended})
        unknown = sorted(set(selectors.get("rids", ())) - {rid for rid, _ in hit} - set(ended))
        words = [f"{rid} in {stage}" for rid, stage in hit] + [f"{rid} had ended" for rid in ended]
        words += [f"{rid} is remembered" for rid in unknown]
        self._say(f"abort of {what}: {', '.join(words) or 'nothing'}")
        if unknown:
            for worker in self._pool.live_workers():
                self._network.send(self.name, worker, Abort(tenant="t", rids=tuple(unknown)))

    # -- polling ---------------------------------------------------------------------------------------------------

    def _ensure_pump(self, worker: str) -> None:
        if worker not in self._pumps:
            self._pumps[worker] = Pump(worker, heard_at=self._timeline.now)
            self._poll(self._pumps[worker])

    def _poll(self, pump: Pump) -> None:
        if not self.alive or not pump.alive:
            return
        if self._timeline.now - pump.heard_at > self._patience_s:
            self.worker_gone(pump.worker, "it does not answer")
            return
        pump.number += 1
        number = pump.number
        poll = Poll(number, pump.acknowledged)
        gone = lambda: self.worker_gone(pump.worker, "it is gone")  # noqa: E731
        self._network.send(self.name, pump.worker, poll, refused=gone, quiet=True)
        self._timeline.after(REPOLL_S, lambda: self._poll(pump) if pump.number == number else None)


def describe(end: Finished) -> str:
    """An end in a few words."""
    tokens = f"{end.completion_tokens} token{'s' if end.completion_tokens != 1 else ''}"
    if end.outcome is Outcome.ABORT:
        reason = end.reason.value if end.reason else "?"
        stage = end.stage.value if end.stage else "?"
        return f"abort {reason} in {stage}, {tokens}"
    turn = f", turn {end.turn}" if end.turn else ""
    replayed = ", replayed" if end.replayed else ""
    return f"{end.outcome.value}, prompt {end.prompt_tokens} (cached {end.cached_tokens}), {tokens}{turn}{replayed}"
