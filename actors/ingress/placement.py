"""Where a request without a session runs: pure functions (rules P4, P5)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from actors.ports import Member

READY = "ready"
LOAD_FACTOR = 1.25
LOAD_SLACK = 4


def affinity_key(
    headers: Mapping[str, str],
    header_names: Sequence[str],
    prompt_cache_key: str | None,
    begins_with: str | None,
) -> str | None:
    """What says that two requests share a prefix, in order of how explicit it is; None if nothing does. `begins_with`:
    what prompts that begin alike have in common."""
    for name in header_names:
        value = headers.get(name)
        if value:
            return f"header:{value}"
    if prompt_cache_key:
        return f"cache:{prompt_cache_key}"
    return begins_with


def ready(members: Sequence[Member]) -> list[Member]:
    return [member for member in members if member.state.lower() == READY]


def rendezvous(key: str, worker_ids: Sequence[str]) -> list[str]:
    """Workers in the key's order of preference. Adding a worker changes the first choice of about 1/N of the keys;
    removing one changes only that of its own."""
    return sorted(worker_ids, key=lambda worker_id: (_score(key, worker_id), worker_id), reverse=True)


def loads(members: Sequence[Member], ingress_id: str, mine: Mapping[str, int]) -> dict[str, int]:
    """Requests by worker: what others had sent there at its last heartbeat, and what this ingress has there now,
    `mine`, in place of what that heartbeat tells of it."""
    return {
        member.worker_id: mine.get(member.worker_id, 0) + _of_others(member, ingress_id, mine) for member in members
    }


def choose(key: str | None, loads: Mapping[str, int]) -> str | None:
    """The worker for a stateless request: the first in the key's order that is not overloaded, else the least loaded.

    A worker is overloaded when it holds more than `LOAD_FACTOR` times its fair share (and more than `LOAD_SLACK`): a
    hot key spreads over the next workers of its own order instead of queueing behind itself.
    """
    if not loads:
        return None
    if key is None:
        return min(loads, key=lambda worker_id: (loads[worker_id], worker_id))
    fair_share = (sum(loads.values()) + 1) / len(loads)
    cap = max(LOAD_SLACK, LOAD_FACTOR * fair_share)
    for worker_id in rendezvous(key, list(loads)):
        if loads[worker_id] < cap:
            return worker_id
    return min(loads, key=lambda worker_id: (loads[worker_id], worker_id))


def opening(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """A hash of the system prompt and the first user message: the same for every turn of a stateless conversation."""
    digest = hashlib.blake2b(digest_size=16)
    found = False
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role not in ("system", "user") or not content:
            continue
        digest.update(f"{role}\n{content}\n".encode())
        found = True
        if role == "user":
            break
    return f"opening:{digest.hexdigest()}" if found else None


def _of_others(member: Member, ingress_id: str, mine: Mapping[str, int]) -> int:
    if not member.load_of:
        return max(0, member.load - mine.get(member.worker_id, 0))  # It does not say whose they are.
    return min(member.load, sum(member.load_of.values()) - member.load_of.get(ingress_id, 0))


def _score(key: str, worker_id: str) -> bytes:
    return hashlib.blake2b(f"{worker_id}\n{key}".encode(), digest_size=8).digest()
