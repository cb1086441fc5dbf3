"""Where requests come in: everything that can be refused is refused here, at once and without a trace (rule S7)."""

from __future__ import annotations

from actors.engine.clocks import Clock
from actors.engine.context import Context
from actors.engine.core import Core
from actors.engine.endings import Endings
from actors.engine.entry import Entry
from actors.engine.following import Following, goes_on
from actors.engine.matching import named_otherwise
from actors.engine.ownership import session_of
from actors.engine.request import Request, Verdict
from actors.engine.scoring import unscorable
from actors.engine.sessions import Session, SessionState
from actors.engine.settings import bounded
from actors.engine.sizes import fit
from actors.engine.turns import Place, Turn, assemble, find_place, go_on
from actors.messages import CANNOT_RESUME, OnBusy, Reason, Submit, TokenIds, TurnOf


class Door:
    """Takes `Submit`: checks it, finds its session, grants the lease, and puts it in the waiting queue."""

    def __init__(self, core: Core, endings: Endings, following: Following, entry: Entry) -> None:
        self._core = core
        self._endings = endings
        self._following = following
        self._entry = entry
        self._next_uid = 1
        self.closed_for: Reason | None = None
        """Set at shutdown: every new request is refused with this reason."""
        self.draining = False
        """Only turns of sessions in which another one runs or waits come in: those cannot run elsewhere."""

    def submit(self, submit: Submit, now: float) -> None:
        if self._core.requests.by_key(submit.key) is not None or self._core.ended.has(submit.key, now):
            return  # The network delivered this attempt twice; it has, or will have, its one answer.
        leader = self._following.leader(submit, now)
        if leader is not None:
            self._following.join(leader, submit, now)
            return
        request = Request(self._next_uid, submit, now)
        self._next_uid += 1
        self._core.totals.received += 1
        self._core.requests.add(request)
        refusal = self._at_sight(request, now)
        if refusal is not None:
            self._endings.refuse(request, refusal, now)
            return
        self._start_clocks(request, now)
        if submit.turn is None:
            self._entry.enter(request, Context(list(submit.input_ids)), None, now)
        else:
            self._to_session(request, submit.turn, now)

    def next_turn(self, session: Session, now: float) -> None:
        """The lease is free: let the first queued turn have it, until the next one takes it over."""
        self._let_in(session, now)
        while session.queue and self._takes_over(session.queue[0], session):
            self._let_in(session, now)

    def loaded(self, session: Session, now: float) -> None:
        """A session's history has arrived: let in those who waited for it, in order."""
        arrived = list(session.queue)
        session.queue.clear()
        for request in arrived:
            request.parked_in = None
            self._knock(request, session, now)

    def _let_in(self, session: Session, now: float) -> None:
        request = session.queue.popleft()
        request.parked_in = None
        self._knock(request, session, now)

    def _takes_over(self, request: Request, session: Session) -> bool:
        """Whether a parked turn came to supersede, and the turn that runs now can still be aborted."""
        turn, lease = request.submit.turn, session.lease
        running = self._core.requests.by_uid(lease.uid) if lease is not None else None
        supersedes = turn is not None and turn.on_busy is OnBusy.SUPERSEDE
        return supersedes and running is not None and running.can_be_aborted

    # -- at sight --------------------------------------------------------------------------------------------------

    def _at_sight(self, request: Request, now: float) -> Verdict | None:
        submit, core = request.submit, self._core
        if self.closed_for is not None:
            return Verdict.abort(self.closed_for, "the worker accepts no more requests")
        if self.draining and not self._belongs_here(submit):
            return Verdict.abort(Reason.WORKER_DRAINING, "the worker is being drained")
        if self._was_aborted(request, now):
            return Verdict.abort(Reason.CLIENT_ABORT, "aborted before it arrived")
        first = core.requests.named(submit)[0]
        if first is not request:
            return _taken(submit, first.submit)
        if submit.only_join:
            return Verdict.abort(Reason.WORKER_LOST, "the request to be joined does not run here")
        waiting = core.requests.num_waiting + core.requests.num_compiling + core.requests.num_waking
        if waiting >= core.settings.max_waiting:
            text = f"{waiting} requests are waiting; the limit is {core.settings.max_waiting}"
            return Verdict.abort(Reason.QUEUE_FULL, text)
        return self._wrong_ids(submit) or self._wrong_grammar(submit)

    def _was_aborted(self, request: Request, now: float) -> bool:
        """Whether an abort has overtaken it. What named a batch meets each of its parts, and each of them once."""
        tombstones, submit = self._core.tombstones, request.submit
        own = [tombstones.take(name, now) for name in (submit.key, request.rid_key)]
        batch, part = (submit.tenant, submit.batch), (submit.tenant, submit.batch, submit.rid)
        if not tombstones.has_since(batch, part, now):
            return any(own)
        tombstones.add(part, now)
        return True

    def _belongs_here(self, submit: Submit) -> bool:
        """Whether a turn of this request's session runs or waits here."""
        turn = submit.turn
        session = self._core.sessions.find(submit.tenant, turn.session_id) if turn is not None else None
        return session is not None and (session.lease is not None or bool(session.queue))

    def _wrong_ids(self, submit: Submit) -> Verdict | None:
        vocab = self._core.settings.vocab_size
        named = (
            ("input_ids", submit.input_ids),
            ("input_ids", submit.root_ids or ()),
            ("stop_token_ids", submit.sampling.stop_token_ids),
            ("token_ids_logprob", submit.sampling.logprob_ids),
            ("logit_bias", tuple(token for token, _ in submit.sampling.logit_bias)),
        )
        for name, ids in named:
            if ids and not (min(ids) >= 0 and max(ids) < vocab):
                return Verdict.abort(Reason.INVALID, f"{name}: token ids must be in [0, {vocab})", param=name)
        if submit.sampling.stop and not self._core.settings.vocab_bytes:
            return Verdict.abort(Reason.INVALID, "stop: this model has no text, so no stop strings", param="stop")
        return None

    def _wrong_grammar(self, submit: Submit) -> Verdict | None:
        """What cannot go with a grammar: its end is the model's end-of-reply token, which these would ignore."""
        if submit.grammar is None:
            return None
        if self._core.settings.no_grammars:
            return Verdict.abort(Reason.INVALID, self._core.settings.no_grammars, param="grammar")
        for name, given in (("min_tokens", submit.sampling.min_tokens), ("ignore_eos", submit.sampling.ignore_eos)):
            if given:
                text = f"{name} cannot be combined with structured output, which ends where its grammar ends"
                return Verdict.abort(Reason.INVALID, text, param=name)
        return None

    def _start_clocks(self, request: Request, now: float) -> None:
        settings, submit = self._core.settings, request.submit
        waiting = bounded(submit.waiting_timeout_s, settings.waiting_timeout_s, settings.max_waiting_timeout_s)
        deadline = bounded(submit.deadline_s, 0.0, settings.max_deadline_s)
        if waiting:
            self._core.clocks.set(now + waiting, Clock.WAITING, request.uid)
        if deadline:
            self._core.clocks.set(now + deadline, Clock.DEADLINE, request.uid)

    # -- sessions --------------------------------------------------------------------------------------------------

    def _to_session(self, request: Request, turn: TurnOf, now: float) -> None:
        session = session_of(self._core, self._endings, request.submit.tenant, turn, now)
        if isinstance(session, Verdict):
            self._endings.refuse(request, session, now, redirect=session.reason is Reason.WORKER_LOST)
        elif session.state is SessionState.LOADING:
            self._wait_for_history(request, session, now)
        else:
            self._knock(request, session, now)

    def _knock(self, request: Request, session: Session, now: float) -> None:
        """Replay, refuse, queue, supersede, or grant."""
        turn = request.submit.turn
        if turn is None:
            raise AssertionError("only turns knock at a session")
        if session.state is SessionState.CLOSING:
            closing = Verdict.abort(Reason.SESSION_CLOSING, "close was asked for this session")
            self._endings.refuse(request, closing, now)
        elif request.submit.rid in session.history:
            self._repeat(request, session, now)
        elif (other := named_otherwise(request.submit, session.history)) is not None:
            self._endings.refuse(request, _other_body(other.rid), now)
        elif session.lease is not None:
            self._at_busy(request, turn, session, now)
        else:
            place = find_place(turn, session, None, self._core.settings.vocab_bytes)
            self._grant(request, turn, session, place, now)

    def _repeat(self, request: Request, session: Session, now: float) -> None:
        record = session.history.turn(request.submit.rid)
        if record.digest == request.submit.digest:
            context = session.history.context(record.rid)
            if goes_on(request.submit, context, len(context) - len(record.output_ids)):
                self._endings.replay(request, record, context, now)
            else:
                self._endings.refuse(request, _other_text(), now)
            return
        self._endings.refuse(request, _other_body(record.rid), now)

    def _at_busy(self, request: Request, turn: TurnOf, session: Session, now: float) -> None:
        running = self._core.requests.by_uid(session.lease.uid) if session.lease else None
        if running is None:
            raise AssertionError("a lease without its owner")
        place = find_place(turn, session, running, self._core.settings.vocab_bytes)
        takes_over = turn.on_busy is OnBusy.SUPERSEDE or (isinstance(place, Place) and place.aborts)
        if takes_over and running.can_be_aborted:
            if not isinstance(self._restored(request, turn, session, place), Verdict):  # Else nothing changes (S7).
                self._endings.decide(running, Verdict.abort(Reason.SUPERSEDED, "a later turn took its place"), now)
            self._grant(request, turn, session, place, now)
        elif takes_over:
            # Its end is decided and being stored: it cannot be undone, but it is over in a moment.
            self._park(request, session, before_queued=True)
        elif turn.on_busy is OnBusy.QUEUE:
            self._queue(request, session, now)
        elif isinstance(place, Verdict) and place.reason is Reason.PARENT_UNFINISHED:
            self._endings.refuse(request, place, now)
        else:
            text = f"turn {running.submit.rid!r} of this session is running"
            self._endings.refuse(request, Verdict.abort(Reason.SESSION_BUSY, text), now)

    def _wait_for_history(self, request: Request, session: Session, now: float) -> None:
        """Nobody can be refused for being busy yet, so that whoever comes has to wait; not without end (rule S10)."""
        limit = self._core.settings.max_queued_turns + 1
        if len(session.queue) >= limit:
            text = f"{len(session.queue)} turns wait for this session's history; the limit is {limit}"
            self._endings.refuse(request, Verdict.abort(Reason.QUEUE_FULL, text), now)
            return
        self._park(request, session)

    def _queue(self, request: Request, session: Session, now: float) -> None:
        limit = self._core.settings.max_queued_turns
        if len(session.queue) >= limit:
            text = f"{len(session.queue)} turns of this session are queued; the limit is {limit}"
            self._endings.refuse(request, Verdict.abort(Reason.QUEUE_FULL, text), now)
            return
        self._park(request, session)

    def _park(self, request: Request, session: Session, *, before_queued: bool = False) -> None:
        """`before_queued`: ahead of the turns that only wait, behind those that came to take over as well."""
        request.parked_in = session
        index = len(session.queue)
        if before_queued:
            waiting = (at for at, other in enumerate(session.queue) if not other.takes_over)
            index = next(waiting, index)
        request.takes_over = before_queued
        session.queue.insert(index, request)

    def _grant(self, request: Request, turn: TurnOf, session: Session, place: Place | Verdict, now: float) -> None:
        restored = self._restored(request, turn, session, place)
        if isinstance(restored, Verdict):
            self._endings.refuse(request, restored, now)
            return
        place, keep, input_ids = restored
        lease = self._core.sessions.grant(session, request, now)
        request.turn = Turn(session, lease.turn, place.parent, keep, input_ids, place.dropped)
        self._entry.enter(request, go_on(place, keep, input_ids), session.capacity_tokens, now)

    def _restored(
        self, request: Request, turn: TurnOf, session: Session, place: Place | Verdict
    ) -> tuple[Place, int, TokenIds] | Verdict:
        """(place, keep, input ids) of a turn, or why it cannot run, be the lease free or not."""
        if isinstance(place, Verdict):
            return place
        if turn.create and len(session.history) and not turn.whole:
            text = (
                f"session {session.session_id!r} has {len(session.history)} turns already; "
                "leave out `create` to go on with it, or close it first"
            )
            return Verdict.abort(Reason.SESSION_EXISTS, text, param="session.create")
        if turn.behind is not None and turn.behind != (session.history.head or ""):
            return Verdict.abort(Reason.SESSION_BUSY, "the session has gone on since its history was looked at")
        keep, input_ids = assemble(place, request.submit, self._core.settings.bos_id)
        prompt_len = keep + len(input_ids)
        size = fit(prompt_len, request.sampling.max_tokens, session.capacity_tokens, self._core.settings)
        refusal = size if isinstance(size, Verdict) else unscorable(prompt_len, request.sampling)
        if refusal is not None:
            request.tokens = [*place.base[:keep], *input_ids]
            request.prompt_len = prompt_len
            return refusal
        return place, keep, input_ids


def _taken(submit: Submit, first: Submit) -> Verdict:
    if submit.digest != first.digest:
        text = f"a request named {submit.rid!r} is running, with another body"
        return Verdict.abort(Reason.INVALID, text, param="idempotency_key")
    if submit.resumed_ids:
        return _other_text()
    text = f"a request named {submit.rid!r} is running; join it, wait for its end, or abort it"
    return Verdict.abort(Reason.SESSION_BUSY, text, param="rid")


def _other_body(rid: str) -> Verdict:
    return Verdict.abort(Reason.INVALID, f"turn {rid!r} was committed with another body", param="idempotency_key")


def _other_text() -> Verdict:
    text = "its worker was lost, and it was begun anew since, with another text"
    return Verdict.abort(Reason.WORKER_LOST, text, param=CANNOT_RESUME)
