"""The session store as a dictionary, with faults to switch on, and an account of everything it ever accepted."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from actors.messages import SessionMode
from actors.records import (
    CommitStatus,
    SessionExists,
    SessionRecord,
    SessionUnknown,
    StoreError,
    TurnCommit,
    TurnRecord,
    TurnUnknown,
)
from tests.sim.results import SimResults

Key = tuple[str, str]


@dataclass
class Row:
    record: SessionRecord
    turns: list[TurnRecord] = field(default_factory=list)


@dataclass(frozen=True)
class Accepted:
    """A turn at the moment it became durable. `prompt`: its restored prompt, by the store's own account."""

    commit: TurnCommit
    owner: str
    before: TurnRecord | None
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class Rollback:
    """Turns that a rollback dropped. `after`: how many turns had been accepted then."""

    after: int
    generation: int
    dropped: tuple[TurnRecord, ...]


class SimStore(SimResults):
    """Implements `actors.records.SessionStore`.

    `faults`: what the next calls meet: "fail" (nothing is done) or "ambiguous" (it is done, and an error answered).
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self.faults: deque[str] = deque()
        self.accepted: list[Accepted] = []
        self.rollbacks: list[Rollback] = []
        self.forks = 0
        self.closed: set[int] = set()
        self._say = say
        self._rows: dict[Key, Row] = {}
        self._generation = 0

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
        if (tenant, session_id) in self._rows:
            raise SessionExists(session_id)
        self._generation += 1
        record = SessionRecord(
            tenant=tenant,
            session_id=session_id,
            generation=self._generation,
            epoch=1,
            owner=owner,
            mode=mode,
            idle_timeout_s=idle_timeout_s,
            capacity_tokens=capacity_tokens,
            turns=0,
            tokens=0,
            last_active_at=now,
        )
        self._rows[(tenant, session_id)] = Row(record)
        self._say(f"store: {session_id} opened for {owner}, epoch 1")
        return record

    def acquire(self, tenant: str, session_id: str, *, owner: str, expected_epoch: int) -> SessionRecord:
        row = self._row(tenant, session_id)
        old = row.record
        if old.epoch == expected_epoch:
            row.record = replace(old, owner=owner, epoch=old.epoch + 1)
            self._say(f"store: {session_id} goes from {old.owner} to {owner}, epoch {row.record.epoch}")
        return row.record

    def get(self, tenant: str, session_id: str) -> SessionRecord:
        return self._row(tenant, session_id).record

    def load(self, tenant: str, session_id: str, generation: int) -> tuple[SessionRecord, list[TurnRecord]]:
        if self._fault("load", session_id):
            raise StoreError("unreachable")
        row = self._row(tenant, session_id)
        if row.record.generation != generation:
            raise SessionUnknown(session_id)
        return row.record, list(row.turns)

    def commit(self, commits: list[TurnCommit], now: float) -> list[CommitStatus]:
        fault = self._fault("commit", commits[0].session_id)
        if fault == "fail":
            raise StoreError("unreachable")
        statuses = [self._commit_one(commit, now) for commit in commits]
        if fault == "ambiguous":
            raise StoreError("the connection broke")
        return statuses

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
        if (tenant, session_id) in self._rows:
            raise SessionExists(session_id)
        source = self._row(tenant, source_id)
        if source.record.generation != source_generation:
            raise SessionUnknown(source_id)
        head = turn or source.record.head
        by_rid = {known.rid: known for known in source.turns}
        if head not in by_rid:
            raise TurnUnknown(turn or "")
        chain, rid = set(), head
        while rid is not None:
            chain.add(rid)
            rid = by_rid[rid].parent
        turns = [known for known in source.turns if known.rid in chain]
        self._generation += 1
        self.forks += 1
        record = replace(
            source.record,
            session_id=session_id,
            generation=self._generation,
            epoch=1,
            owner=owner,
            turns=len(turns),
            tokens=len(context(turns, head)),
            last_active_at=now,
            head=head,
        )
        self._rows[(tenant, session_id)] = Row(record, turns)
        self._say(f"store: {session_id} forked from {source_id} at {head} for {owner}, epoch 1")
        return record

    def rollback(
        self, tenant: str, session_id: str, generation: int, *, epoch: int, turn: str, now: float
    ) -> CommitStatus:
        fault = self._fault("rollback", session_id)
        if fault == "fail":
            raise StoreError("unreachable")
        row = self._rows.get((tenant, session_id))
        if row is None or (row.record.generation, row.record.epoch) != (generation, epoch):
            return CommitStatus.STALE
        if all(known.rid != turn for known in row.turns):
            raise TurnUnknown(turn)
        below = {turn}
        for known in row.turns:
            if known.parent in below:
                below.add(known.rid)
        dropped = tuple(known for known in row.turns if known.rid != turn and known.rid in below)
        self.rollbacks.append(Rollback(len(self.accepted), generation, dropped))
        row.turns = [known for known in row.turns if known not in dropped]
        tokens = len(context(row.turns, turn))
        row.record = replace(row.record, turns=len(row.turns), tokens=tokens, last_active_at=now, head=turn)
        self._say(f"store: {session_id} rolled back to {turn}")
        if fault == "ambiguous":
            raise StoreError("the connection broke")
        return CommitStatus.OK

    def close(self, tenant: str, session_id: str, generation: int, *, epoch: int | None = None) -> bool:
        if self._fault("close", session_id):
            raise StoreError("unreachable")
        row = self._rows.get((tenant, session_id))
        if row is None or row.record.generation != generation:
            return False
        if epoch is not None and row.record.epoch != epoch:
            self._say(f"store: close of {session_id} refused, epoch {epoch} is stale")
            return False
        del self._rows[(tenant, session_id)]
        self.closed.add(generation)
        self._say(f"store: {session_id} forgotten")
        return True

    def list_sessions(self, tenant: str, *, after: str = "", limit: int = 100) -> list[SessionRecord]:
        rows = sorted((key[1], row.record) for key, row in self._rows.items() if key[0] == tenant and key[1] > after)
        return [record for _, record in rows[:limit]]

    def owned_by(self, owner: str) -> list[SessionRecord]:
        return [row.record for row in self._rows.values() if row.record.owner == owner]

    def expired(self, now: float, limit: int = 1000) -> list[SessionRecord]:
        records = [row.record for row in self._rows.values()]
        return [r for r in records if r.idle_timeout_s and r.last_active_at + r.idle_timeout_s <= now][:limit]

    def count(self, tenant: str) -> int:
        return sum(key[0] == tenant for key in self._rows)

    def figures(self) -> dict[str, object]:
        return {"sessions": len(self._rows), "turns": sum(len(row.turns) for row in self._rows.values())}

    # -- for tests -------------------------------------------------------------------------------------------------

    def turns(self, tenant: str, session_id: str) -> list[TurnRecord]:
        return list(self._row(tenant, session_id).turns)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _row(self, tenant: str, session_id: str) -> Row:
        row = self._rows.get((tenant, session_id))
        if row is None:
            raise SessionUnknown(session_id)
        return row

    def _fault(self, verb: str, session_id: str) -> str:
        fault = self.faults.popleft() if self.faults else ""
        if fault:
            self._say(f"store: {verb} of {session_id} fails" + (", but is done" if fault == "ambiguous" else ""))
        return fault

    def _commit_one(self, commit: TurnCommit, now: float) -> CommitStatus:
        row = self._rows.get((commit.tenant, commit.session_id))
        turn, name = commit.turn, f"store: {commit.session_id} turn {commit.turn.number} ({commit.turn.rid})"
        if row is None or (row.record.generation, row.record.epoch) != (commit.generation, commit.epoch):
            self._say(f"{name} refused, epoch {commit.epoch} is stale")
            return CommitStatus.STALE
        if any(known.rid == turn.rid and known.number == turn.number for known in row.turns):
            return CommitStatus.OK
        kept = context(row.turns, turn.parent)[: turn.keep]
        before = row.turns[-1] if row.turns else None
        self.accepted.append(Accepted(commit, row.record.owner, before, (*kept, *turn.input_ids)))
        row.turns = [known for known in row.turns if known.rid not in turn.dropped] + [turn]
        row.record = replace(row.record, turns=len(row.turns), tokens=commit.tokens, last_active_at=now, head=turn.rid)
        self._say(f"{name} stored")
        return CommitStatus.OK


def context(turns: list[TurnRecord], rid: str | None) -> list[int]:
    """ctx(turn), rebuilt from its chain; a second program beside the engine's own."""
    if rid is None:
        return []
    turn = next(known for known in turns if known.rid == rid)
    return [*context(turns, turn.parent)[: turn.keep], *turn.input_ids, *turn.output_ids]
