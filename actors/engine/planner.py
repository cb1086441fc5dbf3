"""One step's work: decodes first, then prefill chunks, within the token budget and the pages there are (rules K4, P7).

There is no prefill or decode phase: a request has positions to compute, and the last of them may choose a token.
"""

from __future__ import annotations

from actors.engine import scoring
from actors.engine.clocks import Clock
from actors.engine.core import Core
from actors.engine.hibernation import Hibernation
from actors.engine.plan import PENDING, DecodeRow, Decodes, PlanItem, StepPlan
from actors.engine.policy import ageing, share_prefill
from actors.engine.preemption import Preemption
from actors.engine.request import Awaited, Request, RequestState
from actors.engine.settings import bounded

WAITING = RequestState.WAITING
MAX_SCORED = 256
"""Tokens of prompts that are scored in one step: each takes a row of logits as wide as the vocabulary."""
MAX_LOOKED_UP = 32
"""Requests that are found in one step to wait for another's prefill; of a crowd, the others are looked at in the next
steps."""


class Planner:
    """Admits and composes. A plan item is added whole or not at all."""

    def __init__(self, core: Core, hibernation: Hibernation, preemption: Preemption) -> None:
        self._core = core
        self._hibernation = hibernation
        self._preemption = preemption
        self._number = 0
        self._ageing = ageing(core.settings)

    def plan(self, now: float) -> StepPlan | None:
        """The next step, or None when there is nothing that could be computed now."""
        self._preemption.leave(now)
        decodes, decoding, items = Decodes(), list[Request](), list[PlanItem]()
        settings = self._core.settings
        begun = self._add_decodes(decodes, decoding, items, settings.max_step_tokens, now)
        replies = len(decodes) + len(items)
        budget = settings.max_step_tokens - replies
        if replies and settings.mixed_prefill_tokens:
            budget = min(budget, settings.mixed_prefill_tokens)
        if budget > 0:
            self._add_prefills(items, self._admit(begun, settings.max_step_tokens - replies, now), budget, now)
        if not decodes and not items:
            return None
        self._number += 1
        self._core.decoding.append(decoding)
        return StepPlan(self._number, tuple(items), decodes)

    # -- decodes and prefills --------------------------------------------------------------------------------------

    def _add_decodes(
        self, decodes: Decodes, decoding: list[Request], items: list[PlanItem], budget: int, now: float
    ) -> list[Request]:
        """One position for each request that has one, as far as `budget` goes. Returns those that have more: they are
        in the midst of their prompts.

        This is what a step costs for each request of the batch: who decodes is asked nothing, until `decodes_until`."""
        begun: list[Request] = []
        rows, starts, tokens = decodes.rows, decodes.starts, decodes.tokens
        for request in self._core.requests.running():
            if not budget:
                break
            start = request.planned
            if start >= request.decodes_until and not self._has_another_page(request, start):
                ready = self._ready(request)
                if ready > 1:
                    begun.append(request)
                    continue
                if not ready or request.preempt_wanted or request.state is WAITING:
                    continue
                if not self._preemption.make_room(request, 1, now):
                    continue
                if not self._decodes_on(request):
                    items.append(self._item(request, 1, now))
                    budget -= 1
                    continue
            budget -= 1
            inflight = request.inflight
            request.planned = start + 1
            request.inflight = inflight + 1
            decoding.append(request)
            rows.append(request.row)
            starts.append(start)
            tokens.append(PENDING if inflight else request.tokens[start])
        return [request for request in begun if request.state is not WAITING]

    def _has_another_page(self, request: Request, start: int) -> bool:
        """Of those that have come to their `decodes_until`, most only need another page."""
        last = request.prompt_len + request.max_tokens - 1
        if not request.decodes_until or start >= last or not self._core.kv.grow(request.uid, start + 1):
            return False
        self._decode_until(request, last)
        return True

    def _decode_until(self, request: Request, last: int) -> None:
        request.decodes_until = min(len(request.row.page_table) * self._core.settings.page_size, last)

    def _decodes_on(self, request: Request) -> bool:
        """Let a request decode for a while without being asked: to the end of its pages, or up to its last token.
        False: each of its steps needs more than the columns of `Decodes` hold."""
        if request.state is not RequestState.DECODE or request.grammar_asked or request.penalised:
            return False
        sampling, table = request.sampling, self._core.kv.table(request.uid)
        if request.row.page_table is not table:
            request.row = DecodeRow(request.uid, table, sampling, request.prompt_len)
        self._decode_until(request, request.prompt_len + request.max_tokens - 1)
        request.plain = not request.followers and request.stops is None and sampling.logprobs is None
        return True

    def _add_prefills(self, items: list[PlanItem], prompts: list[Request], budget: int, now: float) -> None:
        if not prompts:
            return
        waited = [self._waited(request) for request in prompts]
        grants = share_prefill([self._ready(request) for request in prompts], waited, budget)
        for request, count in zip(prompts, self._scorable(prompts, grants, waited), strict=True):
            in_batch = request.state is not WAITING
            if count and in_batch and not request.preempt_wanted and self._preemption.make_room(request, count, now):
                items.append(self._item(request, count, now))

    def _waited(self, request: Request) -> float:
        """For how many tokens its steps in the batch count."""
        return self._ageing * (self._number - request.began_step)

    def _scorable(self, prompts: list[Request], grants: list[int], waited: list[float]) -> list[int]:
        """As much of `grants` as can be scored in one step: that is shared among those that are scored as the step
        itself is among all (rule P7)."""
        scored = {
            at: len(scoring.positions(request, request.planned, grants[at]))
            for at, request in enumerate(prompts)
            if request.scored < request.prompt_len
        }
        counts = list(grants)
        shares = share_prefill(list(scored.values()), [waited[at] for at in scored], MAX_SCORED)
        for at, most in zip(scored, shares, strict=True):
            counts[at] = scoring.most_positions(prompts[at], prompts[at].planned, grants[at], most)
        return counts

    def _ready(self, request: Request) -> int:
        """Positions to compute next. 0 while the token in flight may be the last one allowed."""
        pending = request.pending_samples
        known = len(request.tokens) + pending
        if pending and known - request.prompt_len >= request.max_tokens:
            return 0
        return known - request.planned

    def _item(self, request: Request, count: int, now: float) -> PlanItem:
        tokens, pending = request.tokens, request.pending_samples
        start, known = request.planned, len(tokens)
        end = start + count
        samples = end == known + pending and request.max_tokens > 0
        sampling, constrained = request.sampling, request.grammar_asked
        item = PlanItem(
            request.uid,
            start,
            count,
            tokens[start:end],
            self._core.kv.table(request.uid),
            samples,
            end > known,
            sampling,
            known - request.prompt_len + pending,
            request.prompt_len,
            tokens if constrained or request.penalised else None,
            constrained,
        )
        if request.scored < request.prompt_len:
            item.scored, item.scored_at = scoring.wanted(request, start, count)
        self._count(request, start, end)
        request.planned = end
        request.inflight += 1
        if request.first_forward_at is None:
            self._first_forward(request, now)
        return item

    def _count(self, request: Request, start: int, end: int) -> None:
        """Each position counts as new once; what a preemption makes be computed again has a counter of its own."""
        first_new = max(start, min(end, request.furthest))
        self._core.totals.recomputed_tokens += first_new - start
        self._core.totals.prefill_tokens += max(0, min(end, request.prompt_len) - first_new)

    def _first_forward(self, request: Request, now: float) -> None:
        request.first_forward_at = now
        self._core.totals.queue_times.add(now - request.arrived_at)
        settings = self._core.settings
        asked = request.submit.running_timeout_s
        limit = bounded(asked, settings.running_timeout_s, settings.max_running_timeout_s)
        if limit:
            self._core.clocks.set(now + limit, Clock.RUNNING, request.uid)

    # -- admission -------------------------------------------------------------------------------------------------

    def _admit(self, begun: list[Request], seats: int, now: float) -> list[Request]:
        """The prompts to work on: those begun, then waiting ones as long as seats, pages and budget allow, in order."""
        core, prompts = self._core, begun
        oldest = prompts[0] if prompts else None
        promised: int | None = None
        passed_over = looked_up = 0
        while core.requests.num_running < core.settings.max_running and len(prompts) < seats:
            request = core.requests.nth_waiting(passed_over)
            if request is None:
                break
            if self._still_awaits(request, oldest):
                passed_over += 1
                continue
            if promised is None:
                promised = sum(self._missing_pages(running) for running in core.requests.running())
            covered = self._begin(request)
            if any(self._will_have(request, covered, other, oldest) for other in prompts):
                core.kv.release(request.uid)
                passed_over += 1
                looked_up += 1
                if looked_up == MAX_LOOKED_UP:
                    break
                continue
            missing = self._missing_pages(request)
            if core.requests.num_running and promised + missing > core.kv.available:
                core.kv.release(request.uid)
                break
            if self._hibernation.wake(request, covered, now):
                continue
            promised += missing
            self._start(request, covered, now)
            prompts.append(request)
            oldest = request if oldest is None else min(oldest, request, key=lambda one: one.order)
        return sorted(prompts, key=lambda request: request.order)

    def _still_awaits(self, request: Request, oldest: Request | None) -> bool:
        """Whether what it was last found to wait for is still being computed: many may wait for many steps, and to look
        into the cache for each of them in each step would take longer than the step."""
        awaited = request.awaits
        other = self._core.requests.by_uid(awaited.uid)
        if other is None or other.state is not RequestState.PREFILL or other.computed >= awaited.tokens:
            return False
        return self._comes_soon(other, awaited.todo, oldest)

    def _comes_soon(self, other: Request, todo: int, oldest: Request | None) -> bool:
        """Whether a prompt has its part of the next steps, as one with `todo` tokens would. Otherwise it may get
        nothing for a while: the rest goes to shorter ones (`share_prefill`), or to others that have waited."""
        return other is oldest or other.remaining <= 2 * todo

    def _will_have(self, request: Request, covered: int, other: Request, oldest: Request | None) -> bool:
        """Whether most of what `request` has to compute is what `other` is computing: then it comes sooner, and is held
        once, if it waits until it can be found in the cache (rule K3). Nobody waits for one that comes after it: that
        one may get little of each step (rule P7)."""
        settings, todo = self._core.settings, len(request.tokens) - covered
        if other.order > request.order or request.scored < request.prompt_len:
            return False
        if not self._comes_soon(other, todo, oldest):
            return False
        if not settings.prefix_cache or todo < settings.worth_sharing_tokens or request.keys.root != other.keys.root:
            return False
        if request.turn is not None and request.turn.keep:
            return False  # What is appended to a slot is not looked for in the index (rule K2).
        size = settings.page_size
        pages = -(-(covered + -(-todo // 2)) // size)  # So many hold what is covered, and half of the rest.
        full = min(len(request.tokens) - 1, other.prompt_len) // size
        if pages > full or other.computed >= pages * size or request.keys[pages - 1] != other.keys[pages - 1]:
            return False
        in_common = request.keys.in_common(other.keys.first(full), full)
        request.awaits = Awaited(other.uid, in_common * size, todo)
        return True

    def _begin(self, request: Request) -> int:
        turn = request.turn
        session, kept = (turn.session.uid, turn.keep) if turn else (None, 0)
        return self._core.kv.begin(request.uid, request.keys, session, kept, most=request.reusable)

    def _start(self, request: Request, covered: int, now: float) -> None:
        request.computed = request.planned = covered
        request.began_step = self._number
        if request.cached_tokens is None:
            request.cached_tokens = min(covered, request.prompt_len)  # A resumed request may find output, too.
            self._core.totals.cached_tokens += request.cached_tokens
            self._core.totals.prompt_tokens += request.prompt_len
        self._core.fairness.started(request)
        self._core.requests.start(request)
        request.move(RequestState.PREFILL, f"{covered} of {len(request.tokens)} tokens cached", now)

    def _missing_pages(self, request: Request) -> int:
        """Pages a request will probably need besides those it has."""
        kv = self._core.kv
        return max(0, kv.pages_for(self._core.forecast.total_tokens(request)) - len(kv.table(request.uid)))
