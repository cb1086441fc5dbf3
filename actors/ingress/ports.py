"""Kept while the move to `actors.ports` settles."""

from actors.ports import (
    Ask,
    Member,
    NoWorker,
    Placement,
    PoolPort,
    SessionLimit,
    WorkerGone,
    WorkerPort,
)

__all__ = ["Ask", "Member", "NoWorker", "Placement", "PoolPort", "SessionLimit", "WorkerGone", "WorkerPort"]
