"""How long a request may look for a worker, and what is left of its clocks when it finds one (rule C1)."""

from __future__ import annotations

from dataclasses import replace

from actors.ingress.errors import ApiError
from actors.ingress.part_meters import Meter
from actors.messages import Reason, Stage, Submit
from configs import TimeoutConfig


class Patience:
    """The waiting clock runs until the first token; after that, only a worker that was lost makes it look again.
    Where no waiting clock runs, `park_s` is how long a search may take."""

    def __init__(self, submit: Submit, meter: Meter, timeouts: TimeoutConfig, park_s: float) -> None:
        self._submit = submit
        self._meter = meter
        self._timeouts = timeouts
        self._park_s = park_s
        self._lost_at_s = 0.0
        self._began = False

    def lost(self, *, began: bool) -> None:
        """A worker that had taken it came to nothing: the search for another begins now. `began`: it had made tokens,
        so that the waiting clock has stopped."""
        self._lost_at_s = self._meter.elapsed_s()
        self._began = self._began or began

    def left_s(self) -> float:
        waiting_s = self._waiting_s() or self._lost_at_s + self._park_s
        limit_s = min(waiting_s, self._submit.deadline_s or waiting_s)
        return max(0.001, limit_s - self._meter.elapsed_s())

    def check(self) -> None:
        """Raises ApiError when it is over."""
        waiting_s, deadline_s = self._waiting_s(), self._submit.deadline_s
        spent_s = self._meter.elapsed_s()
        if deadline_s and spent_s >= deadline_s:
            raise ApiError(Reason.DEADLINE, "The deadline passed before a worker was ready.", stage=Stage.ROUTING)
        if waiting_s and spent_s >= waiting_s:
            message = "The waiting timeout passed before a worker was ready."
            raise ApiError(Reason.WAITING_TIMEOUT, message, stage=Stage.ROUTING)
        if not waiting_s and spent_s >= self._lost_at_s + self._park_s:
            raise ApiError(Reason.WORKER_LOST, "No worker is ready. Please try again.", stage=Stage.ROUTING)

    def with_clocks(self, submit: Submit) -> Submit:
        """What has passed is taken off the limits that the worker goes by."""
        spent_s = self._meter.elapsed_s()
        running_s = submit.running_timeout_s
        if self._began:
            asked_s = self._timeouts.running_s if running_s is None else running_s
            running_s = _less(asked_s, spent_s - (self._meter.first_token_s or spent_s))
        return replace(
            submit,
            waiting_timeout_s=_less(self._waiting_s(), spent_s),
            running_timeout_s=running_s,
            deadline_s=_less(submit.deadline_s, spent_s),
        )

    def _waiting_s(self) -> float | None:
        asked_s = 0.0 if self._began else self._submit.waiting_timeout_s
        return self._timeouts.waiting_s if asked_s is None else asked_s


def _less(limit_s: float | None, spent_s: float) -> float | None:
    """What is left of a limit. 0 and None keep their meaning (off, server default)."""
    return limit_s if not limit_s else max(limit_s - spent_s, 0.001)
