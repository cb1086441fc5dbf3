"""What the session store keeps, and the port through which workers and the pool reach it.

A session's history is a tree of *turns*. A turn keeps only what it added: `keep` tokens of its parent's context, then
its `input_ids`, then its `output_ids`; the context of a turn is the chain of these from the root (rule S4).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from actors.messages import Outcome, SessionMode, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One committed turn. `number` counts from 1 within the session's generation.

    `parent` is the rid it continues from, None for a root; `keep` is how many tokens of the parent's context it starts
    with (all of them for a plain append). `cached_tokens` and `matched` are kept so that a replay answers alike.
    """

    rid: str
    number: int
    parent: str | None
    keep: int
    input_ids: TokenIds
    output_ids: TokenIds
    outcome: Outcome
    digest: bytes = b""
    cached_tokens: int = 0
    matched: str | None = None
    dropped: tuple[str, ...] = ()
    """rids of turns that this one replaced (rule S3, `replace`): the store forgets them in the same transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """A session as the store knows it.

    `generation` is unique over all sessions ever created, and grows. `epoch` grows with every change of owner.
    `last_active_at` is wall-clock seconds (Unix time): it must mean something to another process.
    """

    tenant: str
    session_id: str
    generation: int
    epoch: int
    owner: str
    mode: SessionMode
    idle_timeout_s: float | None
    capacity_tokens: int | None
    turns: int
    tokens: int
    last_active_at: float
    head: str | None = None
    """rid of the turn that the next one continues from: the last committed, or where a rollback went (rule S12)."""
    weights: str = ""
    """Version of the weights that its last turn was made with; empty before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCommit:
    """A turn to be made durable by the owner that holds `epoch`."""

    tenant: str
    session_id: str
    generation: int
    epoch: int
    turn: TurnRecord
    tokens: int
    """Length of the new head's context, for listing."""
    weights: str = ""
    """Version of the weights that it was made with."""


class CommitStatus(str, Enum):
    """`OK` also for a turn already stored under the same rid and number: commits may be repeated.
    `STALE`: the epoch or generation is not the current one; the caller no longer owns the session (rule T3).
    `SESSION_FULL`, `STORE_FULL`: not stored, since it would take its session, or all sessions together, over their
    byte cap (rule S10)."""

    OK = "ok"
    STALE = "stale"
    SESSION_FULL = "session_full"
    STORE_FULL = "store_full"


class ResultState(str, Enum):
    """`RUNNING`: claimed, by `owner`, until its lease ends. `DONE`: `body` answers the request. `EXPIRED`: there was a
    result; only its name and digest are left, so that it can be said."""

    RUNNING = "running"
    DONE = "done"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRecord:
    """What the store knows of an idempotency key of a request without a session (rule T2).

    `digest` identifies the request's body. `owner` names the attempt that made the claim. `until` is the Unix time at
    which the state ends: a running claim lapses, a result expires, an expired one is forgotten.
    """

    state: ResultState
    digest: bytes
    owner: str
    until: float
    body: bytes = b""


class ClaimStatus(str, Enum):
    """`CLAIMED`: the caller is to run the request. `CONFLICT`: the key was used with another body. The others say in
    which state the key's record is."""

    CLAIMED = "claimed"
    RUNNING = "running"
    DONE = "done"
    EXPIRED = "expired"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultClaim:
    """Answer to `claim_result`: what came of it, and the key's record as it is afterwards."""

    status: ClaimStatus
    record: ResultRecord


class PutStatus(str, Enum):
    """`STORED`: also when it was before. `STALE`: another attempt holds the key. `TOO_LARGE`: over the byte cap; the
    key counts as expired from now on."""

    STORED = "stored"
    STALE = "stale"
    TOO_LARGE = "too_large"


class StoreError(Exception):
    """The store could not do what was asked (disk full, locked, unreachable). Whether it happened is unknown."""


class StoreFull(StoreError):
    """Nothing was done, since it would take a session, or the store, over its byte cap."""


class SessionExists(Exception):
    """A session of that id is open."""


class SessionUnknown(Exception):
    """No open session of that id (or not of that generation)."""


class TurnUnknown(Exception):
    """The session has no committed turn of that name."""


class SessionStore(Protocol):
    """Durable sessions, turns and ownership. All methods block; all raise `StoreError` when the medium fails.

    `now` arguments are wall-clock seconds.
    """

    def create(
        self,
        tenant: str,
        session_id: str,
        *,
        owner: str,
        mode: SessionMode,
        idle_timeout_s: float | None,
        capacity_tokens: int | None,
        now: float,
    ) -> SessionRecord:
        """Open a session with epoch 1 and a new generation. Raises SessionExists."""

    def acquire(self, tenant: str, session_id: str, *, owner: str, expected_epoch: int) -> SessionRecord:
        """Make `owner` the owner if the epoch still is `expected_epoch`, and raise the epoch by one.

        Returns the record as it is afterwards; when somebody else was faster, theirs. Raises SessionUnknown.
        """

    def get(self, tenant: str, session_id: str) -> SessionRecord:
        """Raises SessionUnknown."""

    def load(self, tenant: str, session_id: str, generation: int) -> tuple[SessionRecord, list[TurnRecord]]:
        """The session and its turns in order of commit. Raises SessionUnknown."""

    def commit(self, commits: list[TurnCommit], now: float) -> list[CommitStatus]:
        """Append turns, all in one transaction, each guarded by its epoch. Durable when it returns."""

    def fork(
        self,
        tenant: str,
        session_id: str,
        *,
        source_id: str,
        source_generation: int,
        turn: str | None,
        owner: str,
        now: float,
    ) -> SessionRecord:
        """Open a session that begins with what another committed up to `turn` (None: its head): that turn and those it
        continues from, under their rids and numbers (rule S12).

        It has epoch 1, a generation of its own, and the mode and limits of its source, which stays as it is.
        Raises SessionExists; SessionUnknown when there is no source of that generation; TurnUnknown; StoreFull.
        """

    def rollback(
        self, tenant: str, session_id: str, generation: int, *, epoch: int, turn: str, now: float
    ) -> CommitStatus:
        """Make `turn` the head and forget all turns that continue from it; other branches stay (rules S3, S12).

        Guarded by the epoch as a commit is, and durable when it returns. Doing it twice is doing it once.
        Raises TurnUnknown.
        """

    def close(self, tenant: str, session_id: str, generation: int, *, epoch: int | None = None) -> bool:
        """Forget a session and its turns. False when there was none of that generation, or, with `epoch`, when that
        is not the current one: a worker that lost a session must not delete it (rule T3)."""

    def list_sessions(self, tenant: str, *, after: str = "", limit: int = 100) -> list[SessionRecord]:
        """Open sessions of a tenant in order of id, those after `after`."""

    def owned_by(self, owner: str) -> list[SessionRecord]:
        """Open sessions whose owner is this worker."""

    def expired(self, now: float, limit: int = 1000) -> list[SessionRecord]:
        """Open sessions whose idle timeout passed by the wall clock; for sessions whose owner is dead."""

    def count(self, tenant: str) -> int:
        """How many sessions of a tenant are open (rule S10)."""

    def figures(self) -> dict[str, object]:
        """How large it is, for /v1/stats: `sessions` and `turns` it holds, and what else the medium can tell."""

    # -- results of requests without a session (rule T2), by (tenant, key) ------------------------------------------

    def claim_result(
        self, tenant: str, key: str, *, digest: bytes, owner: str, now: float, lease_s: float
    ) -> ResultClaim:
        """Ask to be the one that runs the request of this key; of many at once, one is told CLAIMED.

        The claim lapses after `lease_s` unless its owner claims again, which it may do as often as it likes.
        """

    def put_result(
        self,
        tenant: str,
        key: str,
        *,
        digest: bytes,
        owner: str,
        body: bytes,
        now: float,
        ttl_s: float,
        replace: bool = False,
    ) -> PutStatus:
        """Keep the result of what `owner` ran, for `ttl_s`; for as long again the key is known as expired.

        A claim that lapsed and that nobody else made since is no obstacle. Older results make room where the byte cap
        of all together asks for it: they expire early.
        `replace`: whatever is there, whoever's it is, gives way; only one that is too large changes nothing then.
        """

    def get_result(self, tenant: str, key: str, now: float) -> ResultRecord | None:
        """None for a key that was never claimed, whose claim lapsed or was released, or that has been forgotten."""

    def release_result(self, tenant: str, key: str, *, owner: str) -> bool:
        """Give a claim up: the request was refused or aborted, and is to run anew. False when it was not `owner`'s."""
