"""`python -m tests.bench.store_load`: what a session store costs: to commit a turn, and to load a long session.

Commits go the way of a worker: through its `StoreEffects`, which writes all that gathered meanwhile in one batch; so
many turns are kept in flight. SQLite is measured without the actor that owns it in a cluster (a call to that takes
about a millisecond more); Redis as a server on this machine that fsyncs every change, or the one of `--redis`.
"""

from __future__ import annotations

import argparse
import queue
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.engine.effects import EffectResult, StoreTurn, TurnStored
from actors.engine.history import History
from actors.messages import Outcome, SessionMode
from actors.records import SessionRecord, TurnCommit, TurnRecord
from actors.worker.store_effects import StoreEffects
from cluster.store.open import ShutStore
from cluster.store.redis import open_redis
from cluster.store.redis_link import RedisSettings
from cluster.store.sqlite import SqliteStore
from tests.cluster.redis_rig import BINARY, redis_server

TURN_TOKENS = 500
COMMITS = 2000
IN_FLIGHT = (1, 64)
LOAD_TOKENS, LOAD_TURNS, LOADS = 100_000, 200, 20


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.store_load", description=__doc__)
    parser.add_argument("--redis", default="", help="a server to use instead of one of our own")
    parser.add_argument("--commits", type=int, default=COMMITS, help="turns to commit (default: %(default)s)")
    args = parser.parse_args()
    print(f"{'store':<8}{'measure':<44}{'p50 ms':>10}{'p99 ms':>10}")
    for name, opened in stores(args.redis):
        with opened as store:
            for in_flight in IN_FLIGHT:
                what = f"commit of {TURN_TOKENS} tokens, {in_flight} in flight"
                tell(name, what, commit_times(store, in_flight, args.commits))
            load, rebuild = load_times(store)
            tell(name, f"load of {LOAD_TOKENS:,} tokens in {LOAD_TURNS} turns", load)
            tell(name, "  and the context of its last turn", rebuild)


def stores(redis_url: str) -> Iterator[tuple[str, contextmanager[ShutStore]]]:  # type: ignore[type-arg]
    yield "sqlite", sqlite()
    if redis_url or BINARY is not None:
        yield "redis", redis(redis_url)
    else:
        print("redis   not measured: redis-server is not installed, and there is no --redis")


@contextmanager
def sqlite() -> Iterator[ShutStore]:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "s.sqlite")
        yield store
        store.shut()


@contextmanager
def redis(url: str) -> Iterator[ShutStore]:
    prefix = f"bench-{secrets.token_hex(4)}"
    if url:
        store = open_redis(RedisSettings(url, prefix))
        yield store
        store.shut()
        return
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder), *options) as server:
        store = open_redis(RedisSettings(server.url, prefix))
        yield store
        store.shut()


def commit_times(store: ShutStore, in_flight: int, commits: int) -> list[float]:
    """Seconds from a turn's end to the store's answer in the worker's mailbox."""
    mail: queue.SimpleQueue[EffectResult] = queue.SimpleQueue()
    effects = StoreEffects(store, mail.put, time.time)
    records = [create(store, f"c{in_flight}-{number}") for number in range(in_flight)]
    asked: dict[int, float] = {}
    times: list[float] = []

    def ask(uid: int) -> None:
        record = records[uid % in_flight]
        asked[uid] = time.perf_counter()
        commit = commit_of(record, uid // in_flight + 1, TURN_TOKENS)
        effects.perform(StoreTurn(session=uid % in_flight, uid=uid, commit=commit))

    for uid in range(in_flight):
        ask(uid)
    while len(times) < commits:
        stored = mail.get()
        assert isinstance(stored, TurnStored)
        assert (stored.error, stored.stale) == ("", False)
        times.append(time.perf_counter() - asked.pop(stored.uid))
        ask(stored.uid + in_flight)
    effects.close()
    for record in records:
        store.close("t", record.session_id, record.generation)
    return times


def load_times(store: ShutStore) -> tuple[list[float], list[float]]:
    """Seconds to read a session, and to make of that what the engine prefills."""
    record = create(store, "long")
    commits = [commit_of(record, number, LOAD_TOKENS // LOAD_TURNS) for number in range(1, LOAD_TURNS + 1)]
    store.commit(commits, time.time())
    turns: list[TurnRecord] = []

    def load() -> None:
        turns[:] = store.load("t", "long", record.generation)[1]

    def rebuild() -> None:
        assert len(History(turns, turns[-1].rid).context(turns[-1].rid)) == LOAD_TOKENS

    times = timed(load), timed(rebuild)
    store.close("t", "long", record.generation)
    return times


def timed(work: Callable[[], None]) -> list[float]:
    times = []
    for _ in range(LOADS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def create(store: ShutStore, session_id: str) -> SessionRecord:
    limits = {"idle_timeout_s": 3600.0, "capacity_tokens": None}
    now = time.time()
    return store.create("t", session_id, owner="w", mode=SessionMode.STREAMING, now=now, **limits)  # type: ignore[arg-type]


def commit_of(record: SessionRecord, number: int, tokens: int) -> TurnCommit:
    turn = TurnRecord(
        rid=f"chatcmpl-{number:032}",
        number=number,
        parent=f"chatcmpl-{number - 1:032}" if number > 1 else None,
        keep=tokens * (number - 1),
        input_ids=tuple(range(number, number + tokens - 100)),
        output_ids=tuple(range(100)),
        outcome=Outcome.STOP,
        digest=bytes(32),
    )
    return TurnCommit(
        tenant="t",
        session_id=record.session_id,
        generation=record.generation,
        epoch=1,
        turn=turn,
        tokens=tokens * number,
    )


def tell(name: str, what: str, times: list[float]) -> None:
    ordered = sorted(times)
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    print(f"{name:<8}{what:<44}{p50 * 1e3:>10.2f}{p99 * 1e3:>10.2f}", flush=True)


if __name__ == "__main__":
    main()
