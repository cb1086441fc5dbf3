"""Pages for who runs, at the cost of who runs (rule K4). Whom a step under way names leaves when that commits."""

from __future__ import annotations

from actors.engine.core import Core
from actors.engine.policy import victim
from actors.engine.request import Request, RequestState

IN_BATCH = (RequestState.PREFILL, RequestState.DECODE)


class Preemption:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._leaving: list[Request] = []
        """Those with `preempt_wanted`: few, so that nobody has to look for them in the batch."""

    def make_room(self, request: Request, count: int, now: float) -> bool:
        """Pages for `count` more positions, at the cost of others if need be. False: not in this step."""
        kv = self._core.kv
        while not kv.grow(request.uid, request.planned + count):
            loser = victim(r for r in self._core.requests.running() if not r.preempt_wanted)
            if loser is None:
                return False
            if loser is request and self._core.requests.num_running == 1:
                if kv.transfers:
                    return False  # Their pages come back in a moment.
                # Alone, and it was promised to fit (rule K5): what is missing is its own session's old slot.
                if request.turn is None or not kv.drop_slot(request.turn.session.uid):
                    return False
                continue
            if loser.inflight:
                self.want_out(loser)
                return False
            self._preempt(loser, now)
            if loser is request:
                return False
        return True

    def want_out(self, request: Request) -> None:
        """Have a request leave the batch as soon as no step under way names it."""
        request.preempt_wanted = True
        request.ask_again()
        self._leaving.append(request)

    def leave(self, now: float) -> None:
        """Take those out of the batch that are to leave it, if no step under way names them any more."""
        if not self._leaving:
            return
        leaving, self._leaving = self._leaving, []
        for request in leaving:
            if request.state not in IN_BATCH:
                continue  # It has ended meanwhile.
            if request.inflight:
                self._leaving.append(request)
            else:
                self._preempt(request, now)

    def _preempt(self, request: Request, now: float) -> None:
        """Take a request out of the batch: it keeps its tokens and its lease, and gives back its pages (rule K4)."""
        self._core.kv.release(request.uid)
        self._core.requests.requeue(request)
        request.preempt_wanted = False
        request.preemptions += 1
        request.furthest = max(request.furthest, request.planned)
        request.computed = request.planned = 0
        self._core.totals.preemptions += 1
        if not self._core.paused:  # Else it was not for want of pages.
            self._core.forecast.preempted()
        request.move(RequestState.WAITING, "preempted", now)
