"""Sessions and turns for tests of the Redis store alone."""

from __future__ import annotations

from actors.messages import Outcome, SessionMode
from actors.records import SessionRecord, TurnCommit, TurnRecord
from cluster.store.redis import RedisStore, open_redis
from cluster.store.redis_link import RedisSettings
from tests.cluster.redis_rig import RedisServer

DURABLE = ("--appendonly", "yes", "--appendfsync", "always")


def opened(server: RedisServer, timeout_s: float = 30.0, prefix: str = "p") -> RedisStore:
    return open_redis(RedisSettings(server.url, prefix, timeout_s))


def create(store: RedisStore, session_id: str = "s") -> SessionRecord:
    options = {"owner": "w", "mode": SessionMode.TREE, "idle_timeout_s": None, "capacity_tokens": None}
    return store.create("t", session_id, now=1.0, **options)  # type: ignore[arg-type]


def commit_of(record: SessionRecord, number: int = 1, size: int = 10) -> TurnCommit:
    turn = TurnRecord(
        rid=f"r{number}",
        number=number,
        parent=f"r{number - 1}" if number > 1 else None,
        keep=size * (number - 1),
        input_ids=(number,) * (size - 1),
        output_ids=(number,),
        outcome=Outcome.STOP,
    )
    return TurnCommit(
        tenant="t",
        session_id=record.session_id,
        generation=record.generation,
        epoch=record.epoch,
        turn=turn,
        tokens=size * number,
    )
