"""What the pool needs of the world that runs workers. `ray_runtime` is the real one; tests have one in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from actors.messages import (
    CloseSession,
    Drain,
    GetSession,
    LeaveSession,
    Pause,
    Reason,
    ReceiveSession,
    Resume,
    RollbackSession,
)

PoolAsk = CloseSession | Drain | GetSession | LeaveSession | Pause | ReceiveSession | Resume | RollbackSession


class WorkerSilent(Exception):
    """The worker could not be reached just now. It may be alive."""


class Runtime(Protocol):
    """Workers by id. An id names one process for ever: what is started again gets another."""

    async def spawn(self, worker_id: str, release: str) -> None:
        """Begin to start a worker. Returns long before it is ready. Raises WorkerGone when it cannot be begun.

        `release`: what it is made of; it tells it with its stats, under this name.
        """

    async def heartbeat(self, worker_id: str, pool_id: str) -> Mapping[str, Any]:
        """The worker's stats, as soon as it has started; also renews its lease. Raises WorkerGone, WorkerSilent."""

    async def death(self, worker_id: str) -> str:
        """Wait for the worker's process to end. Returns why it did, for people."""

    async def ask(self, worker_id: str, message: PoolAsk) -> object:
        """The value of the worker's reply, however long it takes. Raises WorkerGone."""

    async def carry(self, source: str, target: str, parcel: str) -> bool:
        """Bring KV that one worker has packed to another; not by way of the caller. False: there was none. Raises
        WorkerGone, WorkerSilent."""

    async def stop(self, worker_id: str, reason: Reason = Reason.SHUTDOWN) -> None:
        """Have the worker end its requests with this reason. Raises WorkerGone."""

    async def kill(self, worker_id: str) -> None:
        """End the worker's process. Nothing happens when it has ended."""

    async def living(self) -> list[str]:
        """Ids of the workers that run, whoever started them."""
