"""The conservation law and its relatives, as a second program that recounts everything from scratch (rule K6)."""

from __future__ import annotations

from collections import Counter

from actors.engine.engine import Engine
from actors.engine.plan import NUM_RESERVED_PAGES
from actors.engine.request import RequestState
from actors.engine.sessions import SessionState


class InvariantViolated(AssertionError):
    """What does not hold, in one sentence."""


def check(engine: Engine) -> None:
    """Raise InvariantViolated unless every law holds. Costs a pass over all pages, requests and sessions."""
    _check_pages(engine)
    _check_requests(engine)
    _check_sessions(engine)
    _check_plans(engine)


def _ensure(holds: bool, sentence: str) -> None:
    if not holds:
        raise InvariantViolated(sentence)


def _check_pages(engine: Engine) -> None:
    kv = engine.core.kv
    pool = kv.pool
    by_request = Counter(page for table in kv.tables().values() for page in table.own)
    slots = kv.slots.all()
    by_session = Counter(page for slot in slots.values() for page in slot.pages)
    by_session.update(page for session in kv.transfers for page in kv.transfers.pages(session))
    free = pool.free_list()
    found = {"free": 0, "prefix": 0, "session": 0, "request": 0}
    for page in range(NUM_RESERVED_PAGES, pool.total + NUM_RESERVED_PAGES):
        requests, sessions, indexed = pool.holders(page)
        _ensure(
            requests == by_request[page], f"page {page}: {requests} request holds, {by_request[page]} tables name it"
        )
        _ensure(
            sessions == by_session[page],
            f"page {page}: {sessions} slot holds, {by_session[page]} slots and transfers name it",
        )
        owner = "session" if sessions else "request" if requests else "prefix" if indexed else "free"
        found[owner] += 1
    _ensure(len(free) == len(set(free)), "a page is on the free list twice")
    _ensure(all(pool.is_free(page) for page in free), "a page on the free list is held")
    counts = kv.counts
    counted = (counts.free, counts.prefix_only, counts.session_held, counts.request_owned)
    _ensure(counted == tuple(found.values()), f"counts {counted} are not what is there {tuple(found.values())}")
    _ensure(counts.adds_up, f"pages do not add up: {counts}")
    for uid, table in kv.tables().items():
        _ensure(len(table.pages) == len(set(table.pages)), f"table of {uid} names a page twice")
        lender = slots.get(table.slot) if table.slot is not None else None
        lent = lender.pages[: table.borrowed] if lender else []
        _ensure(table.pages[: table.borrowed] == lent, f"table of {uid} borrows what its slot does not hold")
    for session, slot in slots.items():
        _ensure(len(slot.pages) == kv.pages_for(slot.length), f"slot of {session}: pages and length disagree")
        borrowers = sum(table.slot == session for table in kv.tables().values())
        _ensure(borrowers == slot.borrowers, f"slot of {session}: {slot.borrowers} borrowers, {borrowers} found")
    idle = {session: len(slot.pages) for session, slot in slots.items() if not slot.borrowers}
    _ensure(kv.slots.idle() == idle, f"slots {kv.slots.idle()} are taken for idle, {idle} are")
    uncopied = {session: count for session, count in idle.items() if not slots[session].copied}
    _ensure(kv.slots.uncopied() == uncopied, f"slots {kv.slots.uncopied()} are taken for uncopied, {uncopied} are")
    summed = (sum(idle.values()), sum(uncopied.values()))
    _ensure(summed == (kv.slots.idle_pages, kv.slots.uncopied_pages), "idle and uncopied pages do not add up")


def _check_requests(engine: Engine) -> None:
    requests = engine.core.requests
    waiting, running = set(requests.waiting()), set(requests.running())
    for request in requests.all():
        who = f"request {request.submit.rid!r}"
        state = request.state
        _ensure((state is RequestState.WAITING) == (request in waiting), f"{who}: {state} and waiting queue disagree")
        compiling = requests.is_compiling(request)
        _ensure((state is RequestState.WAITING_GRAMMAR) == compiling, f"{who}: {state} and compiling disagree")
        waking = requests.is_waking(request)
        _ensure((state is RequestState.WAITING_KV) == waking, f"{who}: {state} and waking disagree")
        in_batch = state in (RequestState.PREFILL, RequestState.DECODE)
        _ensure(in_batch == (request in running), f"{who}: {state} and batch disagree")
        _ensure(state is not RequestState.ENDED, f"{who} ended and is still in the table")
        _ensure((state is RequestState.STOPPING) <= (request.inflight > 0), f"{who} is stopping and no plan names it")
        items = [item for plan in engine.uncommitted for item in plan.each() if item.uid == request.uid]
        known = len(request.tokens) + sum(item.samples for item in items)
        if in_batch:
            ordered = 0 <= request.computed <= request.planned <= known
            _ensure(ordered, f"{who}: computed {request.computed}, planned {request.planned}, known {known}")
            capacity = len(engine.core.kv.table(request.uid)) * engine.settings.page_size
            _ensure(request.planned <= capacity, f"{who}: planned {request.planned} positions in room for {capacity}")
            _ensure(request.remaining == known - request.planned, f"{who}: {request.remaining} positions are left")
            _ensure(request.decodes_until <= capacity, f"{who}: decodes until {request.decodes_until}")
        _ensure(len(items) == request.inflight, f"{who}: inflight {request.inflight}, {len(items)} plans name it")
    compiling_now = sum(request.state is RequestState.WAITING_GRAMMAR for request in requests.all())
    _ensure(compiling_now == requests.num_compiling, "a request is over and still counts as compiling")
    waking_now = sum(request.state is RequestState.WAITING_KV for request in requests.all())
    _ensure(waking_now == requests.num_waking, "a request is over and still counts as waking")
    live = sum(1 + len(request.followers) for request in requests.all() if request.is_live)
    _ensure(requests.num_live == live, f"{requests.num_live} attempts are named live, {live} are")
    sent = Counter(ingress for request in requests.all() if request.is_live for _, ingress in request.attempts)
    _ensure(requests.live_of == sent, f"live by ingress are {requests.live_of}, and {dict(sent)} are")
    ended = sum(engine.core.totals.ends.values())
    _ensure(engine.core.totals.received == ended + live, "requests received are not those ended plus those live")


def _check_sessions(engine: Engine) -> None:
    core = engine.core
    sessions = core.sessions.all()
    for session in sessions:
        who = f"session {session.session_id!r}"
        if session.lease is not None:
            owner = core.requests.by_uid(session.lease.uid)
            _ensure(owner is not None and owner.is_live, f"{who}: the lease's owner is gone")
        if session.state is SessionState.BUSY:
            _ensure(session.lease is not None, f"{who} is busy without a lease")
        if session.state in (SessionState.IDLE, SessionState.LOADING):
            _ensure(session.lease is None, f"{who} is {session.state.value} and leased")
        if session.state is SessionState.IDLE:
            _ensure(not session.queue, f"{who} is idle with turns queued")
        _ensure(session.history.agrees, f"{who}: its head's context is not what its turns add up to")
        length = core.kv.slot_length(session.uid)
        if length:
            _ensure(session.slot_rid in session.history, f"{who}: its slot holds a turn that is not history")
    leased = sum(session.lease is not None for session in sessions)
    _ensure(core.sessions.num_leased == leased, f"{core.sessions.num_leased} count as leased, {leased} sessions are")
    known = {session.uid for session in sessions}
    _ensure(set(core.kv.slots.all()) <= known, "a slot without its session")
    _ensure(set(core.images) <= known, "an image without its session")
    held = {request.uid for request in core.requests.all()}
    _ensure(set(core.kv.tables()) <= held, "a page table without its request")


def _check_plans(engine: Engine) -> None:
    pool = engine.core.kv.pool
    named = [[row.uid for row in plan.decodes.rows] for plan in engine.uncommitted]
    decoding = [[request.uid for request in requests] for requests in engine.core.decoding]
    _ensure(decoding == named, f"plans name {named}, and {decoding} are taken for those that decode")
    for plan in engine.uncommitted:
        for item in plan.each():
            last = (item.start + item.count - 1) // engine.settings.page_size
            for page in item.page_table[: last + 1]:
                _ensure(not pool.is_free(page), f"page {page} is free and plan {plan.number} names it")
