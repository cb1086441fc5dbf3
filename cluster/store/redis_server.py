"""What a Redis server must be, to hold sessions: looked at once, when a store is opened."""

from __future__ import annotations

import logging
from typing import Any

from redis.exceptions import NoPermissionError

from actors.records import StoreError
from cluster.store.redis_link import RedisLink

SCHEMA_VERSION = 2
OLDEST_SCHEMA = 1
"""What it wrote is read as it is: its sessions have no version of weights."""
OLDEST_REDIS = (7, 0)
"""Scripts say from this version on what they do when the memory is full."""

KEYS = (b"pool", b"sessions", b"by-tenant", b"by-owner", b"by-expiry")
"""The first keys of every script about sessions."""

logger = logging.getLogger("remora.store")


def inspect(link: RedisLink) -> None:
    """Raises StoreError for a server that cannot be reached, is too old, or may drop sessions as if they were a cache;
    warns when it forgets what was acknowledged."""
    info: dict[str, Any] = link.call(_info, patience_s=0.0)
    if not info:
        logger.warning("%s: its user may not ask for INFO: memory policy and durability were not checked", link.name)
        return
    version = str(info.get("redis_version", ""))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST_REDIS:
        raise StoreError(f"{link.name}: it is version {version}; 7.0 or later is needed")
    policy = str(info.get("maxmemory_policy", ""))
    if policy.startswith("allkeys"):
        raise StoreError(f"{link.name}: its maxmemory-policy is {policy}, which deletes sessions; set noeviction")
    if not info.get("aof_enabled"):
        logger.warning(
            "%s: it has no append-only file, so that turns told as done are lost when it restarts;"
            " set appendonly yes and appendfsync always",
            link.name,
        )


def claim(link: RedisLink, vocabulary: str) -> None:
    """Note which schema and whose token ids the keys hold; refuse others' (rule T6). Raises StoreError."""
    keys = [link.key(name) for name in KEYS]
    answer = link.script("open", keys, str(SCHEMA_VERSION), vocabulary, str(OLDEST_SCHEMA))
    kind = answer[0].decode()
    if kind == "schema":
        known = f"this program knows version {SCHEMA_VERSION}"
        raise StoreError(f"{link.name}: its schema is version {answer[1].decode()}; {known}")
    if kind == "vocabulary":
        theirs = answer[1].decode()
        raise StoreError(f"{link.name}: its {answer[2]} sessions belong to {theirs}; this is {vocabulary}")


def figures(link: RedisLink) -> dict[str, object]:
    """How large the store is, for /v1/stats. Raises StoreError."""
    names: Any = ["turns", "bytes", "result_bytes"]

    def ask(client: Any) -> tuple[int, list[bytes | None], int, dict[str, Any]]:
        pool = client.hmget(link.key(b"pool"), names)
        sizes = (client.hlen(link.key(b"sessions")), client.hlen(link.key(b"results")))
        return sizes[0], pool, sizes[1], _info(client)

    sessions, (turns, turn_bytes, result_bytes), results, info = link.call(ask, again=False)
    return {
        "sessions": sessions,
        "turns": int(turns or 0),
        "bytes": int(turn_bytes or 0),
        "results": results,
        "result_bytes": int(result_bytes or 0),
        "server_version": info.get("redis_version"),
        "server_used_bytes": info.get("used_memory"),
        "server_max_bytes": info.get("maxmemory"),
        "append_only_file": bool(info.get("aof_enabled")),
    }


def _info(client: Any) -> dict[str, Any]:
    try:
        return {**client.info("server"), **client.info("memory"), **client.info("persistence")}
    except NoPermissionError:
        return {}
