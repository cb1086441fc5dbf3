"""The fleet's size and release, look by look: what the pure decisions need, and what is told about a rollout."""

from __future__ import annotations

import logging
from collections.abc import Callable

from cluster.actions import Action
from cluster.fleet import Fleet
from cluster.membership import Worker, WorkerState
from cluster.placement import Directory, ending_cost
from cluster.reconcile import reconcile
from cluster.rollout import let_go
from configs import RolloutConfig, SessionConfig

logger = logging.getLogger("remora.pool")


class Rolling:
    """`clock`: monotonic seconds."""

    def __init__(
        self,
        settings: RolloutConfig,
        sessions: SessionConfig,
        fleet: Fleet,
        directory: Directory,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._fleet = fleet
        self._directory = directory
        self._clock = clock
        self._was = "done"

    def begin(self, at: float) -> None:
        """Replace every worker that runs, also by others of the same settings, weights and code. `at`: Unix time."""
        logger.info("a rollout was asked for")
        self._fleet.renew(at)

    def actions(self, desired: int, living: list[str]) -> list[Action]:
        """What to do now so that `desired` workers of this release serve."""
        workers = self._fleet.members.all()
        self._tell()
        return reconcile(
            desired,
            workers,
            living,
            lambda worker: ending_cost(worker, self._directory),
            may_spawn=self._fleet.may_spawn,
            rollout=self._settings,
            stopped=self._stopped,
            pins=self._sessions.weights == "pin",
        ) + let_go(workers, self._directory.count, self._clock(), self._sessions.pin_grace_s)

    @property
    def kept(self) -> list[str]:
        """Workers that are there for pinned sessions only."""
        return [worker.worker_id for worker in self._fleet.members.all() if worker.alive and worker.kept_at is not None]

    @property
    def under_way(self) -> bool:
        """Whether a worker is still to be replaced."""
        return bool(self._stale)

    def figures(self) -> dict[str, object]:
        """For /v1/stats. `state`: `done`, `running`, or `stopped`: starts have failed, and `why`."""
        state = self._state
        return {
            "state": state,
            "why": self._fleet.last_failure if state == "stopped" else "",
            "weights": self._fleet.release.weights,
            "stale_workers": len(self._stale),
            "kept_workers": len(self.kept),
            "restart": self._fleet.release.restart,
        }

    # -- inside ----------------------------------------------------------------------------------------------------

    @property
    def _stale(self) -> list[Worker]:
        workers = self._fleet.members.all()
        return [worker for worker in workers if worker.alive and worker.stale and worker.kept_at is None]

    @property
    def _stopped(self) -> bool:
        return self._fleet.failed_starts >= self._settings.max_failed_starts

    @property
    def _state(self) -> str:
        if not self._stale:
            return "done"
        waits = any(worker.state is not WorkerState.DRAINING for worker in self._stale)
        return "stopped" if self._stopped and waits else "running"

    def _tell(self) -> None:
        """A line in the log whenever that changes."""
        before, self._was = self._was, self._state
        if self._was == before:
            return
        if self._was == "stopped":
            logger.error(
                "the rollout stops: %d starts failed, the last: %s; %d workers of before serve on",
                self._fleet.failed_starts,
                self._fleet.last_failure,
                len(self._stale),
            )
        elif self._was == "running":
            logger.info("the rollout goes on: %d workers are to be replaced", len(self._stale))
        else:
            logger.info("the rollout is done: no worker of before is left")
