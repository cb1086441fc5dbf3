"""One request on its way through workers: attempts until the first token, then one worker to the end.

A caller that asked for it (`on_worker_lost: resume`) gets more than one worker after the first token, too: what it has
been told goes along with the next attempt, which goes on behind it (rule T4)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from actors.ingress.channel import Batch, Line, Pump, spawn
from actors.ingress.errors import ApiError
from actors.ingress.part_meters import Meter
from actors.ingress.patience import Patience
from actors.ingress.repeating import may_repeat, was_misplaced
from actors.ingress.results import Keeper, rest_of
from actors.messages import Abort, Finished, Outcome, Reason, Stage, Submit
from actors.ports import NoWorker, WorkerGone

if TYPE_CHECKING:
    from actors.ingress.routing import Call, Router, Target

MAX_REDIRECTS = 6
FIRST_BACKOFF_S = 0.02
MAX_BACKOFF_S = 1.0


class Running:
    """Take batches with `take` until one has an end; call `abandon` in a `finally`, whatever happened.

    Whoever ends it, the end is told to the meter once: by the worker's own account where there is one, also when
    nobody listens any more.
    """

    def __init__(self, router: Router, call: Call, meter: Meter, on_retry: Callable[[], None]) -> None:
        self.call = call
        self.worker_id: str | None = None
        self.delivered = 0
        self._told: list[int] = []
        """What was delivered, if it may have to be resumed."""
        self._made_from = b""
        """The prompt of that, for a turn: see `Tokens.prompt`."""
        self._patience = Patience(call.submit, meter, router.timeouts, router.park_s)
        self.stage = Stage.ROUTING
        self._router = router
        self._meter = meter
        self._on_retry = on_retry
        self._placing: asyncio.Task[None] | None = None
        self._line: Line | None = None
        self._target: Target | None = None
        self._pump: Pump | None = None
        self._avoid: str | None = None
        self._redirects = 0
        self._backoff_s = FIRST_BACKOFF_S
        self._ended_here: asyncio.Future[Finished] | None = None
        self._over = False
        named = call.session is None and call.submit.idempotent
        self._keeper = Keeper(router.pool, call.submit) if named else None
        self._stored: Batch | None = None
        router.running.add(self)

    @property
    def weights(self) -> str:
        """Version of the weights that it is made with; empty where that is not known."""
        return self._router.weights_of(self.worker_id)

    def elapsed_s(self) -> float:
        """Since the request came."""
        return self._meter.elapsed_s()

    @property
    def submitted(self) -> bool:
        """Whether a worker has it, or may have it."""
        return self._line is not None

    async def take(self, *, hold_s: float = 0.0, timeout_s: float | None = None) -> Batch:
        """New ids, or the end, or (after `timeout_s`) nothing. Never raises for a worker's death: that is an end.

        Raises ApiError when no worker can be found to begin with.
        """
        while True:
            if self._stored is not None:
                return self._account(self._stored)
            if self._ended_here is not None and self._ended_here.done():
                return self._finish(self._ended_here.result(), Batch())
            if self._line is None or self._placing is not None:
                if not await self._placed(timeout_s):
                    return Batch()
                continue
            try:
                batch = await self._line.take(hold_s=hold_s, timeout_s=timeout_s)
            except WorkerGone as gone:
                batch = Batch((), self._lost(str(gone)))
            if batch.end is not None and self._may_repeat(batch):
                await self._back_off(batch.end, began=bool(self.delivered or batch.ids))
                if not batch.ids:
                    continue
                batch = replace(batch, end=None)
            if batch.end is not None and self._keeper is not None:
                await self._keeper.settle(batch.end, (*self._told, *batch.ids))
            return self._account(batch)

    def on_backlog(self, told: Callable[[int], None]) -> None:
        """Have `told` called with the number of ids that wait (rule A8)."""
        if self._line is not None:
            self._line.on_backlog = told

    def end_here(self, reason: Reason, message: str) -> None:
        """End it from this side, while somebody still listens: the next `take` returns the end."""
        if self._over:
            return
        self._tell_abort(reason)
        end = self._own_end(reason, message)
        self._ended_here = asyncio.get_running_loop().create_future()
        self._ended_here.set_result(end)
        if self._line is not None:
            self._line.push(end)
        elif self._placing is not None:
            self._placing.cancel()

    def abandon(self, reason: Reason = Reason.CLIENT_DISCONNECT) -> None:
        """Nobody listens any more. Ends the request at its worker unless it has ended; exactly one abort is sent.

        A submit under way is not cancelled: its answer is the end that the meter waits for, and should the abort be
        there first, the worker remembers it (rule A5).
        """
        if self._over:
            return
        self._leave()
        line = self._line
        if line is None:
            if self._placing is not None:
                self._placing.cancel()
            self._meter.end(Outcome.ABORT, reason, Stage.ROUTING)
            return
        if line.over:
            if line.end is not None:
                self._meter.charge(line.end)  # Nobody heard of it, but it was worked on.
            self._meter.end(Outcome.ABORT, reason, self.stage)
            return
        line.on_end = lambda end: self._late_end(end, reason)
        self._tell_abort(reason)

    async def _placed(self, timeout_s: float | None) -> bool:
        """Have a line, or after `timeout_s` not yet. The work goes on in a task of its own meanwhile."""
        if self._placing is None:
            self._placing = spawn(self._place())
        done, _ = await asyncio.wait({self._placing}, timeout=timeout_s)
        if not done:
            return False
        task, self._placing = self._placing, None
        try:
            if not task.cancelled():
                task.result()
        except ApiError as error:
            self._leave()
            self._meter.end(Outcome.ABORT, error.reason, error.stage)
            raise
        except Exception:
            self._leave()
            raise
        return True

    async def _place(self) -> None:
        """One attempt after the other until a worker has the request. Raises ApiError."""
        while True:
            parked = False
            try:
                await self._submit(await self._find_target())
                return
            except NoWorker:
                parked = self.call.session is None  # The pool itself holds those that have one.
            except WorkerGone:
                self._tell_abort(Reason.WORKER_LOST)  # It may have the message all the same.
                if self._line is not None:
                    self._line.lose("the worker is gone")
                if self._over:
                    return
                self._give_up_attempt()
            if self._over or self._ended_here is not None:
                return  # As in `_submit`: the cancellation met the pool's answer.
            self._patience.check()
            if parked:
                await self._router.parking.wait(self._patience.left_s())
            else:
                await self._pause()

    async def _find_target(self) -> Target:
        """Raises NoWorker also when the pool does not answer for as long as this request may wait."""
        try:
            return await asyncio.wait_for(self._router.target(self.call, self._avoid), self._patience.left_s())
        except asyncio.TimeoutError:
            raise NoWorker("the pool does not answer") from None

    async def _submit(self, target: Target) -> None:
        if self._over or self._ended_here is not None:
            return  # `wait_for` may swallow a cancellation that meets its result (before Python 3.12).
        only_join = False
        if self._keeper is not None:
            found = await self._keeper.claim(target.worker_id)
            if self._over or self._ended_here is not None:
                self._keeper.drop()
                return
            if isinstance(found, Batch):
                self._stored = rest_of(found, tuple(self._told))
                return
            target, only_join = replace(target, worker_id=found.worker_id), found.only_join
        pump = self._router.channels.to(target.worker_id)
        key = uuid.uuid4().hex
        message = self._message(target, key)
        if only_join:
            message = replace(message, join=True, only_join=True)
        self._target, self._pump, self.worker_id = target, pump, target.worker_id
        # Before the submit: from here on there may be something to abort.
        self._line = pump.open_line(key, len(self._told))
        self.stage = Stage.WAITING
        try:
            await asyncio.wait_for(pump.port.submit(message), self._router.submit_s)
        except asyncio.TimeoutError:
            raise WorkerGone("the worker does not take requests") from None

    def _message(self, target: Target, key: str) -> Submit:
        """The submit of one attempt. Time spent here counts against its clocks (rule C1)."""
        return replace(
            self._patience.with_clocks(self.call.submit),
            key=key,
            ingress=self._router.ingress_id,
            turn=target.turn,
            resumed_ids=tuple(self._told),
            resumed_prompt=self._made_from,
        )

    def _may_repeat(self, batch: Batch) -> bool:
        end = batch.end
        if end is None or self._ended_here is not None or self._redirects >= MAX_REDIRECTS:
            return False
        began, remembered = bool(self.delivered or batch.ids), self._target is not None and self._target.cached
        return may_repeat(end, began=began, resumes=self.call.resume, remembered=remembered)

    async def _back_off(self, end: Finished, *, began: bool) -> None:
        """Forget where it went, and be ready to place it anew."""
        self._redirects += 1
        self._patience.lost(began=began)
        self._give_up_attempt()
        if was_misplaced(end):
            self._avoid = None
        else:
            await self._pause()

    def _give_up_attempt(self) -> None:
        if self._line is not None and self._pump is not None:
            self._pump.drop_line(self._line.key)
            self._made_from = self._line.prompt or self._made_from
        self._avoid = self.worker_id
        self._line, self._target, self._pump = None, None, None
        self.stage = Stage.ROUTING
        self._on_retry()
        if self.call.session is not None:
            self._router.forget(self.call.submit.tenant, self.call.session.session_id)

    async def _pause(self) -> None:
        wait_s, self._backoff_s = self._backoff_s, min(self._backoff_s * 2, MAX_BACKOFF_S)
        await asyncio.sleep(wait_s)

    def _account(self, batch: Batch) -> Batch:
        if batch.ids:
            self.delivered += len(batch.ids)
            self.stage = Stage.DECODE
            self._meter.tokens(len(batch.ids))
            if self.call.resume or self._keeper is not None:
                self._told.extend(batch.ids)
        return batch if batch.end is None else self._finish(batch.end, batch)

    def _finish(self, end: Finished, batch: Batch) -> Batch:
        self._leave()
        if end.redirect:  # Out of tries: an owner could not be found.
            end = self._own_end(Reason.WORKER_LOST, "The session's owner could not be found. Please try again.")
        self._meter.end_with(end)
        return replace(batch, end=end)

    def _lost(self, why: str) -> Finished:
        message = f"The request was running on a worker that was lost ({why}). Please send it again."
        return self._own_end(Reason.WORKER_LOST, message)

    def _own_end(self, reason: Reason, message: str) -> Finished:
        return Finished(
            ingress=self._router.ingress_id,
            key=self._line.key if self._line is not None else "",
            outcome=Outcome.ABORT,
            reason=reason,
            stage=self.stage,
            message=message,
            completion_tokens=self.delivered,
        )

    def _late_end(self, end: Finished | None, reason: Reason) -> None:
        if end is not None:
            self._meter.end_with(end)
        else:
            self._meter.end(Outcome.ABORT, reason, self.stage)

    def _tell_abort(self, reason: Reason) -> None:
        if self._line is not None and self._pump is not None and not self._line.over:
            self._pump.port.tell(Abort(tenant=self.call.submit.tenant, keys=(self._line.key,), reason=reason))

    def _leave(self) -> None:
        self._over = True
        if self._keeper is not None:
            self._keeper.drop()
        self._router.running.discard(self)
