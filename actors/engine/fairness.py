"""Shares of tenants in the queue (rule P7): start-time fair queueing.

Each weighted request is given a place on a virtual axis: where its tenant's last one ends, or where the queue stands
now, whichever is later; it ends as much later as it is expected to cost, divided by its tenant's weight. Requests start
in order of their places. A tenant that floods the queue moves far ahead on its own axis and delays itself; one that
was away starts where the queue stands, without credit. (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996.)
"""

from __future__ import annotations

from actors.engine.request import Request

FORGET_ABOVE = 64
"""Tenants known before those that the queue has passed are looked for and forgotten."""


class Fairness:
    """The virtual axis, in tokens for a weight of 1."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ends: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def place(self, request: Request, cost: int) -> None:
        """Give a request that is about to be queued its place. `cost`: tokens it is expected to take."""
        weight = request.submit.weight
        if not weight:
            return
        tenant = request.submit.tenant
        request.fair_start = max(self._now, self._ends.get(tenant, 0.0))
        self._ends[tenant] = request.fair_start + cost / weight
        if len(self._ends) > FORGET_ABOVE:
            self._ends = {name: end for name, end in self._ends.items() if end > self._now}

    def started(self, request: Request) -> None:
        """The queue stands where the request is that started last."""
        self._now = max(self._now, request.fair_start)
