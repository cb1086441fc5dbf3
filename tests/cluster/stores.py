"""The stores that one contract is for, opened for a test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.records import SessionStore
from cluster.store.limits import StoreLimits
from cluster.store.open import ShutStore
from cluster.store.redis import open_redis
from cluster.store.redis_link import RedisSettings
from cluster.store.sqlite import SqliteStore
from tests.cluster.redis_rig import redis_server, require_redis

KINDS = ["sqlite", "redis"]
OpenStore = Callable[..., ShutStore]
_prefixes = (f"test-{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all tests that do it no harm; each uses a prefix of its own."""
    with redis_server(tmp_path_factory.mktemp("redis"), "--appendonly", "yes", "--appendfsync", "no") as server:
        yield server.url


@pytest.fixture(params=KINDS)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Opens the test's store, and again after `shut`; `limits=StoreLimits(…)`, `vocabulary=…`."""
    with opened(request, tmp_path) as open_one:
        yield open_one


@pytest.fixture
def store(open_store: OpenStore) -> ShutStore:
    return open_store()


@contextmanager
def opened(request: pytest.FixtureRequest, folder: Path) -> Iterator[OpenStore]:
    """For a fixture with one of KINDS as its parameter."""
    open_one = opener(request.param, request, folder)
    stores: list[ShutStore] = []

    def open_and_note(**options: Any) -> ShutStore:
        stores.append(open_one(**options))
        return stores[-1]

    try:
        yield open_and_note
    finally:
        for store in stores:
            store.shut()


def opener(kind: str, request: pytest.FixtureRequest, folder: Path) -> OpenStore:
    """Opens an empty store of this kind, and the same one again."""
    url = ""
    if kind == "redis":
        require_redis()
        url = request.getfixturevalue("redis_url")
    prefix = next(_prefixes)

    def open_one(*, limits: StoreLimits | None = None, vocabulary: str = "") -> ShutStore:
        limits = limits or StoreLimits()
        if url:
            return open_redis(RedisSettings(url, prefix, 30.0, limits), vocabulary)
        return SqliteStore(folder / "sessions.sqlite", limits=limits, vocabulary=vocabulary)

    return open_one


def figures_of(store: SessionStore, *names: str) -> dict[str, object]:
    figures = store.figures()
    return {name: figures[name] for name in names}
