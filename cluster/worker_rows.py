"""What /v1/stats says of each worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from actors.ports import WorkerGone
from cluster.membership import Membership, Worker, WorkerState
from cluster.placement import Directory
from cluster.runtime import Runtime, WorkerSilent

ANSWER_S = 1.0
"""How long a worker has to answer; after that its last answer is shown."""
MAX_DEATHS_SHOWN = 10


class WorkerRows:
    """`pool_id`: in whose name they are asked. `clock`: monotonic seconds."""

    def __init__(
        self, members: Membership, runtime: Runtime, directory: Directory, pool_id: str, clock: Callable[[], float]
    ) -> None:
        self._members = members
        self._runtime = runtime
        self._directory = directory
        self._pool_id = pool_id
        self._clock = clock

    async def rows(self) -> list[dict[str, object]]:
        """Workers as they are now; those that do not answer, as they last were."""
        return list(await asyncio.gather(*(self._row(worker) for worker in self._members.all() if worker.alive)))

    def deaths(self) -> list[dict[str, object]]:
        """The last ones."""
        dead = [worker for worker in self._members.all() if not worker.alive]
        return [{"worker": one.worker_id, "cause": one.cause} for one in dead[-MAX_DEATHS_SHOWN:]]

    async def _row(self, worker: Worker) -> dict[str, object]:
        stats: Mapping[str, Any] = worker.stats
        if worker.ever_ready:
            with suppress(WorkerGone, WorkerSilent, asyncio.TimeoutError):
                stats = await asyncio.wait_for(self._runtime.heartbeat(worker.worker_id, self._pool_id), ANSWER_S)
        shown = {name: value for name, value in stats.items() if name != "release"}  # Digests, also of passwords.
        return {
            "id": worker.worker_id,
            **shown,
            "state": state_of(worker),
            "stale": worker.stale,
            "owned_sessions": self._directory.count(worker.worker_id),
            "silent_s": round(self._clock() - worker.heard_at, 3),
        }


def state_of(worker: Worker) -> str:
    """As ingresses are told: one that is kept for pinned sessions gets nothing else."""
    kept = worker.kept_at is not None and worker.state is WorkerState.READY
    return "kept" if kept else worker.state.value
