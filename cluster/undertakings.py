"""Starts and ends of workers' processes that have been begun, and take their time."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from actors.ports import WorkerGone
from cluster.runtime import Runtime

logger = logging.getLogger("remora.pool")


class Undertakings:
    """Whoever begins one does not wait for it: what starts and ends processes may be away for a while, and time goes on
    for the workers that live. Of one worker, the end comes after the start: nobody is left who started too late."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}

    def start(self, worker_id: str, release: str, done: Callable[[str, WorkerGone | None], None]) -> None:
        """`done(worker_id, failure)` is told when the process has begun to start, or why it cannot."""
        self._begin(self._starts, worker_id, self._start(worker_id, release, done))

    def end(self, worker_id: str) -> None:
        """Once at a time: a worker that is found alive again is ended again."""
        if worker_id not in self._ends:
            self._begin(self._ends, worker_id, self.ended(worker_id))

    async def ended(self, worker_id: str) -> None:
        """End it, and wait for that."""
        starting = self._starts.get(worker_id)
        if starting is not None:
            await asyncio.wait({starting})
        await self._runtime.kill(worker_id)

    def stop(self) -> None:
        """Wait for none any more. What Ray has been told happens all the same."""
        for task in (*self._starts.values(), *self._ends.values()):
            task.cancel()

    async def _start(self, worker_id: str, release: str, done: Callable[[str, WorkerGone | None], None]) -> None:
        try:
            await self._runtime.spawn(worker_id, release)
        except WorkerGone as gone:
            done(worker_id, gone)
        else:
            done(worker_id, None)

    def _begin(self, tasks: dict[str, asyncio.Task[None]], worker_id: str, work: Coroutine[Any, Any, None]) -> None:
        """In an empty context: cancelling whatever request is being served cannot reach it."""
        task = contextvars.Context().run(asyncio.get_running_loop().create_task, work)
        tasks[worker_id] = task
        task.add_done_callback(lambda done: _over(tasks, worker_id, done))


def _over(tasks: dict[str, asyncio.Task[None]], worker_id: str, task: asyncio.Task[None]) -> None:
    del tasks[worker_id]
    if not task.cancelled() and task.exception() is not None:
        logger.error("%s could not be started or ended", worker_id, exc_info=task.exception())
