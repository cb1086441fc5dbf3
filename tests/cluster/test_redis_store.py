"""What only the Redis store has: a server that others use too, an URL with a password in it."""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from actors.messages import SessionMode
from actors.records import (
    CommitStatus,
    PutStatus,
    SessionExists,
    SessionUnknown,
    StoreError,
)
from cluster.store.limits import StoreLimits
from cluster.store.open import open_shared, open_store
from cluster.store.redis import RedisStore, open_redis
from cluster.store.redis_link import RedisSettings
from cluster.store.urls import shown
from configs import StoreConfig
from tests.cluster.redis_rig import RedisServer, free_port, redis_server
from tests.cluster.redis_turns import DURABLE, commit_of, create, opened

PASSWORD = "hunter2-p@ss/w:rd#%"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """For tests that do it harm."""
    with redis_server(tmp_path / "redis", *DURABLE) as started:
        yield started


# -- what it holds ---------------------------------------------------------------------------------------------------


def test_clusters_share_a_server_by_prefix(server: RedisServer) -> None:
    one, two = opened(server, prefix="one"), opened(server, prefix="two")
    record, other = create(one), create(two)
    one.commit([commit_of(record)], 2.0)
    assert two.load("t", "s", other.generation) == (other, [])
    assert one.close("t", "s", record.generation)
    assert two.list_sessions("t") == [other]
    client = server.client()
    keys: list[bytes] = client.keys("*")  # type: ignore[assignment]
    assert {key.split(b":")[0] for key in keys} == {b"{one}", b"{two}"}
    for store in (one, two):
        store.shut()
    client.close()


def test_a_store_in_use_by_many_processes_is_pickled_and_connects_anew(server: RedisServer) -> None:
    """No actor in between: a worker gets a copy."""
    store = opened(server)
    copy: RedisStore = pickle.loads(pickle.dumps(store))
    record = create(copy)
    assert store.get("t", "s") == record
    with pytest.raises(SessionExists):
        create(store)
    copy.shut()
    assert store.commit([commit_of(record)], 2.0) == [CommitStatus.OK]
    store.shut()


def test_closing_leaves_nothing_of_a_session(server: RedisServer) -> None:
    """S9: its memory is free."""
    store = opened(server)
    client = server.client()
    records = [create(store, f"s{number}") for number in range(3)]
    store.commit([commit_of(record) for record in records], 2.0)
    for record in records:
        assert store.close("t", record.session_id, record.generation)
    assert client.keys("*") == [b"{p}:pool"]
    client.close()
    store.shut()


def test_results_that_were_not_counted_by_tenant_are_when_it_matters(server: RedisServer) -> None:
    """S13, T2: a program of before that has written to the same Redis did not note who holds them."""
    store = open_redis(RedisSettings(server.url, "p", 30.0, StoreLimits(results_bytes=2000)))
    put = {"digest": b"d", "owner": "a", "ttl_s": 60.0, "body": b"x" * 600}
    for number in range(2):
        store.put_result("flood", f"k{number}", now=10.0 + number, **put)  # type: ignore[arg-type]
    client = server.client()
    assert client.delete("{p}:results-by-tenant", "{p}:result-holders") == 2
    assert store.put_result("quiet", "k", now=1.0, **put) is PutStatus.STORED  # type: ignore[arg-type]
    kept = [store.get_result(*name, 12.0) for name in (("flood", "k0"), ("flood", "k1"), ("quiet", "k"))]
    assert [one.state.value if one else None for one in kept] == ["expired", "done", "done"]
    client.close()
    store.shut()


def test_a_damaged_or_missing_turn_is_an_error_and_not_a_wrong_history(server: RedisServer) -> None:
    """T6: a turn never silently runs without its history."""
    store = opened(server)
    record = create(store)
    store.commit([commit_of(record), commit_of(record, 2)], 2.0)
    client = server.client()
    key = "{p}:data:1:t:s"
    whole = client.hget(key, "r2")
    assert isinstance(whole, bytes)
    client.hset(key, "r2", whole[:-1] + b"\x55")
    with pytest.raises(StoreError, match="checksum"):
        store.load("t", "s", record.generation)
    client.hdel(key, "r2")
    with pytest.raises(StoreError, match="1 of 2 turns"):
        store.load("t", "s", record.generation)
    client.close()
    store.shut()


def test_values_that_do_not_fit_are_store_errors_and_change_nothing(server: RedisServer) -> None:
    """I1: nothing may wedge the store."""
    store = opened(server)
    with pytest.raises(StoreError):
        create(store, "\ud800")
    with pytest.raises(StoreError):
        store.acquire("t", "s", owner="w", expected_epoch=2**70)
    assert store.count("t") == 0
    record = create(store)
    with pytest.raises(StoreError, match="with other tokens"):
        store.commit([commit_of(record), commit_of(record, size=11)], 2.0)
    assert store.load("t", "s", record.generation)[1] == [commit_of(record).turn]
    store.shut()


def test_generations_go_on_though_the_server_lost_everything(tmp_path: Path) -> None:
    """S9: without an append-only file what was stored is gone, but no number is given out twice."""
    with redis_server(tmp_path) as server:
        store = opened(server)
        options = {"owner": "w", "mode": SessionMode.TREE, "idle_timeout_s": None, "capacity_tokens": None}
        before = store.create("t", "s", now=1_700_000_000.0, **options)  # type: ignore[arg-type]
        server.kill()
        server.start()
        with pytest.raises(SessionUnknown):
            store.get("t", "s")
        after = store.create("t", "s", now=1_700_000_001.0, **options)  # type: ignore[arg-type]
        assert after.generation > before.generation
        store.shut()


def test_all_keys_of_a_script_are_in_one_slot_of_a_redis_cluster(tmp_path: Path) -> None:
    """A node of a Redis Cluster refuses a script whose keys are not; so every call works on one."""
    with redis_server(tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        client = server.client()
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
            pass
        store = opened(server)
        record, other = create(store), create(store, "other")
        commits = [commit_of(record), commit_of(record, 2), commit_of(other)]
        assert store.commit(commits, 2.0) == [CommitStatus.OK] * 3
        source = {"source_id": "s", "source_generation": record.generation, "owner": "w", "now": 3.0}
        assert store.fork("t", "f", turn="r1", **source).turns == 1  # type: ignore[arg-type]
        assert store.rollback("t", "s", record.generation, epoch=1, turn="r1", now=4.0) is CommitStatus.OK
        assert store.acquire("t", "s", owner="w2", expected_epoch=1).epoch == 2
        assert len(store.load("t", "s", record.generation)[1]) == 1
        assert [one.session_id for one in store.list_sessions("t")] == ["f", "other", "s"]
        assert (store.count("t"), len(store.owned_by("w2")), store.expired(9.0)) == (3, 1, [])
        store.claim_result("t", "k", digest=b"", owner="a", now=1.0, lease_s=9.0)
        store.put_result("t", "k", digest=b"", owner="a", body=b"x", now=1.0, ttl_s=9.0)
        assert store.get_result("t", "k", 2.0) is not None
        assert store.release_result("t", "k", owner="a") is False
        assert store.close("t", "s", record.generation)
        assert store.figures()["sessions"] == 2
        client.close()
        store.shut()


def test_a_socket_in_the_file_system_is_a_server_too(tmp_path: Path) -> None:
    with redis_server(tmp_path, "--unixsocket", "redis.sock"):
        store = open_shared(StoreConfig(url=f"unix://{tmp_path}/redis.sock?db=1"))
        assert create(store).epoch == 1  # type: ignore[arg-type]
        store.shut()


# -- opening ---------------------------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_is_a_clear_error_at_once() -> None:
    port = free_port()
    with pytest.raises(StoreError, match=rf"session store redis://127\.0\.0\.1:{port}/0: .*refused"):
        open_redis(RedisSettings(f"redis://127.0.0.1:{port}/0"))


def test_without_the_client_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("cluster.store.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(StoreError, match=r"redis://\*\*\*@h: it needs the extra: pip install 'remora\[redis\]'"):
        open_shared(StoreConfig(url="redis://:hunter2@h"))


def test_a_newer_schema_is_refused_and_left_as_it_is(server: RedisServer) -> None:
    store = opened(server)
    record = create(store)
    store.shut()
    client = server.client()
    client.hset("{p}:pool", "schema", "99")
    with pytest.raises(StoreError, match="schema is version 99; this program knows version 2"):
        opened(server)
    assert client.hget("{p}:pool", "schema") == b"99"
    client.hset("{p}:pool", "schema", "1")
    again = opened(server)
    assert again.list_sessions("t") == [record]
    again.shut()
    client.close()


def test_what_schema_1_stored_goes_on(server: RedisServer) -> None:
    """T1: its sessions had no version of weights; they get one with their next turn. An older program then refuses."""
    store = opened(server)
    record = create(store)
    store.commit([commit_of(record)], 2.0)
    before = store.load("t", "s", record.generation)
    store.shut()
    client = server.client()
    fields = msgpack.unpackb(client.hget("{p}:sessions", "1:t:s"))  # type: ignore[arg-type]
    client.hset("{p}:sessions", "1:t:s", msgpack.packb(fields[:13]))
    client.hset("{p}:pool", "schema", "1")
    again = opened(server)
    assert client.hget("{p}:pool", "schema") == b"2"
    assert again.load("t", "s", record.generation) == before
    assert again.list_sessions("t") == [before[0]]
    moved = again.acquire("t", "s", owner="w9", expected_epoch=1)
    assert (moved.owner, moved.weights) == ("w9", "")
    commit = replace(commit_of(moved, 2), weights="v1")
    assert again.commit([commit], 3.0) == [CommitStatus.OK]
    assert (again.get("t", "s").weights, again.get("t", "s").turns) == ("v1", 2)
    again.shut()
    client.close()


def test_sessions_of_another_vocabulary_are_refused(server: RedisServer) -> None:
    """T6: token ids of one model are not history to another; a prefix without sessions may change hands."""
    settings = RedisSettings(server.url, "p")
    open_redis(settings, "llama").shut()
    store = open_redis(settings, "qwen")
    record = create(store)
    with pytest.raises(StoreError, match="1 sessions belong to qwen; this is llama"):
        open_redis(settings, "llama")
    opened(server).shut()
    assert store.close("t", "s", record.generation)
    store.shut()
    open_redis(settings, "llama").shut()


def test_a_server_that_may_evict_sessions_is_refused(tmp_path: Path) -> None:
    """T6."""
    with (
        redis_server(tmp_path, "--maxmemory-policy", "allkeys-lru") as server,
        pytest.raises(StoreError, match="allkeys-lru, which deletes sessions; set noeviction"),
    ):
        opened(server)


@pytest.mark.parametrize("options", [DURABLE, ()])
def test_a_server_that_forgets_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: tuple[str, ...]
) -> None:
    """T1: it cannot be kept there."""
    with redis_server(tmp_path, *options) as server, caplog.at_level(logging.WARNING, "remora.store"):
        opened(server).shut()
    assert ("append-only file" in caplog.text) is (not options)


def test_a_user_that_may_not_ask_for_info_can_open_it(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    client = server.client()
    client.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~{p}:*", "+@all", "-info")
    with caplog.at_level(logging.WARNING, "remora.store"):
        store = open_redis(RedisSettings(f"redis://app:pw@127.0.0.1:{server.port}/0", "p"))
    assert "may not ask for INFO" in caplog.text
    assert create(store).epoch == 1
    client.execute_command("ACL", "SETUSER", "app", "-evalsha")
    with pytest.raises(StoreError, match="may not do what is needed"):
        create(store, "other")
    store.shut()
    client.close()


# -- passwords -------------------------------------------------------------------------------------------------------


def test_a_password_works_and_shows_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with redis_server(tmp_path, password=PASSWORD) as server, caplog.at_level(logging.DEBUG):
        url = server.url
        config = StoreConfig(url=url, commit_timeout_s=1.0)
        store = open_shared(config)
        told = [repr(config), repr(store), repr(RedisSettings(url)), str(store.figures()), caplog.text]
        for wrong in (url.replace("hunter2", "hunter3"), f"redis://127.0.0.1:{server.port}/0"):
            with pytest.raises(StoreError, match=r"\.0\.0\.1") as failed:
                open_shared(StoreConfig(url=wrong))
            told.append(str(failed.value))
        server.kill()
        with pytest.raises(StoreError) as failed:
            store.count("t")
        told.append(str(failed.value))
        store.shut()
    for text in told:
        assert "hunter" not in text
        assert "p@ss" not in text


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:hunter2@[broken/0",
        "redis://user:hunter2#x@host:port/0",
        "redis://:hunter2@host:hunter2/0",
        "redis://:hunter2@host/0?socket_timeout=hunter2",
        "redis://host/0?password=hunter2&health_check_interval=hunter2",
    ],
)
def test_an_url_that_cannot_be_read_is_an_error_without_its_password(url: str) -> None:
    with pytest.raises(StoreError, match="cannot be read") as failed:
        open_redis(RedisSettings(url))
    shown_text = str(failed.value).replace("host:hunter2/", "").replace("timeout=hunter2", "")
    assert "hunter2" not in shown_text.replace("interval=hunter2", "")
    assert failed.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://u:p@h:1/2", "redis://***@h:1/2"),
        ("rediss://:p@h", "rediss://***@h"),
        ("redis://:p@ss@h", "redis://***@h"),
        ("redis://h?password=p&db=1", "redis://h?password=***&db=1"),
        ("sqlite:/x@y", "sqlite:/x@y"),
        ("postgres://u:p@h", "postgres://***@h"),
    ],
)
def test_an_url_is_shown_without_user_and_password(url: str, expected: str) -> None:
    assert shown(url) == expected


def test_an_unknown_kind_of_url_is_refused_without_its_password() -> None:
    with pytest.raises(StoreError, match="must be sqlite:PATH or redis://") as failed:
        open_store("postgres://u:hunter2@h")
    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize("prefix", ["", "a b", "{x}", "ü"])
def test_a_prefix_that_would_not_be_one_hash_tag_is_refused(prefix: str) -> None:
    with pytest.raises(StoreError, match=r"store\.prefix"):
        open_redis(RedisSettings("redis://h", prefix))
