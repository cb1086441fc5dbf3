"""A Redis that restarts, hangs, fails over, is torn or full, and what the store does about it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from actors.records import ClaimStatus, CommitStatus, StoreError, TurnCommit
from cluster.store.redis import RedisStore
from tests.cluster.redis_rig import RedisServer, free_port, redis_server
from tests.cluster.redis_turns import DURABLE, commit_of, create, opened


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """For tests that do it harm."""
    with redis_server(tmp_path / "redis", *DURABLE) as started:
        yield started


def settle(server: RedisServer) -> None:
    """Returns when the server has done what reached it before."""
    client = server.client()
    client.ping()
    client.close()


# -- restarts and late answers ---------------------------------------------------------------------------------------


def test_a_server_killed_and_started_again_has_all_that_was_acknowledged(server: RedisServer) -> None:
    """T1: with `appendonly yes` and `appendfsync always`."""
    store = opened(server)
    record = create(store)
    for number in range(1, 30):
        assert store.commit([commit_of(record, number)], 2.0) == [CommitStatus.OK]
    store.claim_result("t", "k", digest=b"d", owner="a", now=1.0, lease_s=60.0)
    before = store.load("t", "s", record.generation)
    server.kill()
    server.start()
    assert store.load("t", "s", record.generation) == before
    assert store.commit([commit_of(record, 30)], 3.0) == [CommitStatus.OK]
    claim = store.claim_result("t", "k", digest=b"d", owner="b", now=2.0, lease_s=60.0)
    assert claim.status is ClaimStatus.RUNNING
    assert create(store, "other").generation > record.generation
    store.shut()


def test_a_commit_waits_for_a_server_that_restarts(server: RedisServer) -> None:
    """T1: what may be done twice is tried again until patience ends."""
    store = opened(server)
    record = create(store)
    server.kill()
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(store.commit([commit_of(record)], 2.0)))
    waiting.start()
    server.start()
    waiting.join(60)
    assert answers == [[CommitStatus.OK]]
    store.shut()


def test_without_a_server_patience_ends_with_a_clear_error(server: RedisServer) -> None:
    store = opened(server, timeout_s=1.0)
    record = create(store)
    server.kill()
    with pytest.raises(StoreError, match=rf"redis://127\.0\.0\.1:{server.port}/0: .*refused"):
        store.commit([commit_of(record)], 2.0)
    with pytest.raises(StoreError, match="refused"):
        create(store, "other")
    store.shut()


def test_a_commit_that_is_answered_too_late_is_an_error_and_is_found_afterwards(server: RedisServer) -> None:
    """T1, T6: the turn is not told as done; whether it was done shows when the history is read; nothing wedges."""
    store = opened(server, timeout_s=1.0)
    record = create(store)
    first, second = commit_of(record), commit_of(record, 2)
    store.commit([first], 2.0)
    server.freeze()
    with pytest.raises(StoreError, match=r"no answer within 1 s"):
        store.commit([second], 3.0)
    with pytest.raises(StoreError, match="no answer"):
        store.load("t", "s", record.generation)
    server.thaw()
    settle(server)
    after, turns = store.load("t", "s", record.generation)
    assert turns == [first.turn, second.turn]
    assert after.turns == 2
    assert store.commit([second], 4.0) == [CommitStatus.OK], "a repeat of it is no second turn"
    assert store.commit([commit_of(record, 3)], 5.0) == [CommitStatus.OK]
    store.shut()


def test_a_late_commit_of_who_lost_the_session_meanwhile_changes_nothing(server: RedisServer) -> None:
    """T3: it reaches the server after another has acquired the session."""
    store, other = opened(server, timeout_s=1.0), opened(server)
    record = create(store)
    moved = other.acquire("t", "s", owner="w2", expected_epoch=1)
    server.freeze()
    with pytest.raises(StoreError, match="no answer"):
        store.commit([commit_of(record)], 3.0)
    server.thaw()
    settle(server)
    assert other.load("t", "s", record.generation) == (moved, [])
    store.shut()
    other.shut()


def test_a_torn_file_costs_no_half_of_a_turn(server: RedisServer) -> None:
    """T6: what a script changed is one transaction in the append-only file: cut in the middle, none of it is there."""
    store = opened(server)
    record = create(store)
    first, second = commit_of(record), commit_of(record, 2, size=1000)
    store.commit([first], 2.0)
    (file,) = (server.folder / "appendonlydir").glob("*.incr.aof")
    before = file.stat().st_size
    store.commit([second], 3.0)
    server.kill()
    whole = file.read_bytes()
    for cut in range(before + 1, len(whole), (len(whole) - before) // 5):
        file.write_bytes(whole[:cut])
        server.start()
        after, turns = store.load("t", "s", record.generation)
        assert (after.turns, turns) == (1, [first.turn])
        server.kill()
    store.shut()


def test_a_replica_is_no_place_to_write_and_is_asked_again_until_it_is_promoted(
    server: RedisServer, tmp_path: Path
) -> None:
    """T1: a turn waits for a failover."""
    store = opened(server)
    record = create(store)
    client = server.client()
    client.execute_command("REPLICAOF", "127.0.0.1", free_port())
    promotion = threading.Timer(0.3, client.execute_command, ("REPLICAOF", "NO", "ONE"))
    promotion.start()
    assert store.commit([commit_of(record)], 2.0) == [CommitStatus.OK]
    promotion.join()
    client.close()
    store.shut()


# -- full ------------------------------------------------------------------------------------------------------------


def test_a_server_without_memory_refuses_a_commit_whole_and_what_frees_memory_works(tmp_path: Path) -> None:
    """T1: maxmemory with noeviction: nothing is half done; close and rollback still work, and then commits again."""
    with redis_server(tmp_path, *DURABLE, "--maxmemory", "100mb", "--maxmemory-policy", "noeviction") as server:
        store = opened(server)
        record, big = create(store), create(store, "big")
        store.commit([commit_of(record), commit_of(big, size=200_000), commit_of(big, 2)], 2.0)
        before = store.load("t", "s", record.generation)
        client = server.client()
        client.config_set("maxmemory", "1mb")
        replacing = commit_of(record, 2)
        with pytest.raises(StoreError, match="out of memory, nothing was stored"):
            store.commit([replacing], 3.0)
        with pytest.raises(StoreError, match="out of memory"):
            create(store, "other")
        with pytest.raises(StoreError, match="out of memory"):
            store.claim_result("t", "k", digest=b"", owner="a", now=1.0, lease_s=1.0)
        assert store.load("t", "s", record.generation) == before
        assert store.acquire("t", "s", owner="w2", expected_epoch=1).epoch == 2
        assert store.rollback("t", "big", big.generation, epoch=1, turn="r1", now=4.0) is CommitStatus.OK
        assert store.close("t", "big", big.generation)
        client.config_set("maxmemory", "100mb")
        moved = store.get("t", "s")
        assert store.commit([commit_of(moved, 2)], 5.0) == [CommitStatus.OK]
        client.close()
        store.shut()


def is_stored(store: RedisStore, commit: TurnCommit) -> bool:
    try:
        return store.commit([commit], 2.0) == [CommitStatus.OK]
    except StoreError as error:
        assert str(error).startswith("session store redis://")  # noqa: PT017 - whether it comes is the question
        return False


def test_a_full_disk_costs_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """T1: with `appendfsync always` the server ends rather than acknowledge what it could not write."""
    with redis_server(tmp_path, *DURABLE, file_bytes=400_000) as server:
        store = opened(server, timeout_s=1.0)
        record = create(store)
        commits = (commit_of(record, number, size=1000) for number in range(1, 1000))
        told = len(list(takewhile(lambda commit: is_stored(store, commit), commits)))
        assert 10 < told < 999
        server.wait_for_its_end()
        server.lift_file_limit()
        server.start()
        numbers = [turn.number for turn in store.load("t", "s", record.generation)[1]]
        assert numbers == list(range(1, told + 1)), "and the turn that failed is not there by half"
        assert store.commit([commit_of(record, told + 1)], 3.0) == [CommitStatus.OK]
        store.shut()
