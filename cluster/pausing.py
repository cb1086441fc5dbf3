"""Generation that operators pause on all workers, and let go on: also on workers that start meanwhile, and by a pool
that begins anew and finds its workers paused."""

from __future__ import annotations

import asyncio
import logging

from actors.messages import Pause, PauseMode, Resume
from actors.ports import WorkerGone
from cluster.membership import Membership, Worker
from cluster.runtime import Runtime, WorkerSilent

logger = logging.getLogger("remora.pool")

ANSWER_S = 5.0
"""How long a worker may take to come to a stand: for as long as its step takes."""
MEND_S = 1.0
"""The same, for one that was told before, or that has just started."""


class Pausing:
    """What is wanted is remembered here and compared with what heartbeats tell, look by look."""

    def __init__(self, members: Membership, runtime: Runtime) -> None:
        self._members = members
        self._runtime = runtime
        self._wanted: bool | None = None
        """None: nobody has said anything to this pool; then whatever it finds is as it should be."""

    @property
    def paused(self) -> bool:
        return self._wanted is True

    async def pause(self, mode: PauseMode) -> dict[str, object]:
        """Returns how it stands: requests that each worker holds, and who did not answer."""
        logger.info("generation is paused (%s)", mode.value)
        self._wanted = True
        return await self._tell(self._alive(), Pause(mode=mode), ANSWER_S)

    async def resume(self) -> dict[str, object]:
        logger.info("generation goes on")
        self._wanted = False
        return await self._tell(self._alive(), Resume(), ANSWER_S)

    async def look(self) -> None:
        """Tell those that are not as they should be."""
        if self._wanted is None and any(_is_paused(worker) for worker in self._alive()):
            logger.warning("generation was paused before this pool began, and stays so")
            self._wanted = True
        if self._wanted is None:
            return
        wrong = [worker for worker in self._alive() if worker.stats and _is_paused(worker) != self._wanted]
        if wrong:
            await self._tell(wrong, Pause(mode=PauseMode.IN_PLACE) if self._wanted else Resume(), MEND_S)

    def _alive(self) -> list[Worker]:
        return [worker for worker in self._members.all() if worker.ever_ready and worker.alive]

    async def _tell(self, workers: list[Worker], message: Pause | Resume, limit_s: float) -> dict[str, object]:
        held = await asyncio.gather(*(self._ask(worker.worker_id, message, limit_s) for worker in workers))
        rows = [{"id": worker.worker_id, "requests": count} for worker, count in zip(workers, held, strict=True)]
        return {
            "paused": self.paused,
            "workers": [row for row in rows if row["requests"] is not None],
            "unreachable": [row["id"] for row in rows if row["requests"] is None],
        }

    async def _ask(self, worker_id: str, message: Pause | Resume, limit_s: float) -> object:
        """The number of its requests; None when it does not say."""
        try:
            return await asyncio.wait_for(self._runtime.ask(worker_id, message), limit_s)
        except (WorkerGone, WorkerSilent, asyncio.TimeoutError):
            logger.warning("%s has not answered %s yet", worker_id, type(message).__name__)
            return None


def _is_paused(worker: Worker) -> bool:
    return bool(worker.stats.get("paused", False))
