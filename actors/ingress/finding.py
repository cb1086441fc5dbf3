"""Who owns a session: the pool's word, or, while that does not come, the word of the worker that has it."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterable

from actors.messages import GetSession, SessionInfo
from actors.ports import Placement, PoolAway, PoolPort, WorkerGone
from actors.records import SessionRecord

SOON_S = 1.0
"""How long the pool, and then the workers, have to answer before somebody else is asked, too."""


async def place(
    pool: PoolPort, tenant: str, session_id: str, *, avoid: str | None, workers: Callable[[], Iterable[str]]
) -> Placement:
    """What `pool.place` answers, and raises. While the pool is away (it starts anew, or its node does), a session goes
    on where it is, if one of `workers` has it; `avoid` is not asked. Should that one be wrong, because it was given up
    and does not know it, the store refuses its commit (rule T3)."""
    asked = contextvars.Context().run(asyncio.ensure_future, pool.place(tenant, session_id, avoid=avoid))
    try:
        await asyncio.wait({asked}, timeout=SOON_S)
        if asked.done() and not isinstance(asked.exception(), PoolAway):
            return asked.result()
        others = [worker_id for worker_id in workers() if worker_id != avoid]
        return await _had_by(pool, others, tenant, session_id) or await asked
    finally:
        asked.cancel()


async def _had_by(pool: PoolPort, workers: list[str], tenant: str, session_id: str) -> Placement | None:
    """The latest opening and owner of the session that these workers know of."""
    answers = await asyncio.gather(*(_asked(pool, worker_id, tenant, session_id) for worker_id in workers))
    found = [placed for placed in answers if placed is not None]
    return max(found, key=lambda placed: (placed.session.generation, placed.session.epoch), default=None)


async def _asked(pool: PoolPort, worker_id: str, tenant: str, session_id: str) -> Placement | None:
    message = GetSession(tenant=tenant, session_id=session_id)
    try:
        info = await asyncio.wait_for(pool.worker(worker_id).ask(message), SOON_S)
    except (WorkerGone, asyncio.TimeoutError):
        return None
    return Placement(worker_id, _record(worker_id, info)) if isinstance(info, SessionInfo) else None


def _record(worker_id: str, info: SessionInfo) -> SessionRecord:
    """As far as a worker knows it: its limits are the worker's to keep."""
    return SessionRecord(
        tenant=info.tenant,
        session_id=info.session_id,
        generation=info.generation,
        epoch=info.epoch,
        owner=worker_id,
        mode=info.mode,
        idle_timeout_s=None,
        capacity_tokens=None,
        turns=info.turns,
        tokens=info.tokens,
        last_active_at=time.time() - info.idle_s,
        head=info.head,
    )
