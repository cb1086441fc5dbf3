"""Conversations: sessions that are gone on with, and what clients see of them: items and metadata.

The session's history is what the model sees. Beside it one record lists the items; it is written anew, under a lock,
with every change. Items that were added without a response have no turn yet: they *pend*, and stand at the beginning of
the next response's input.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from actors.ingress.errors import ApiError
from actors.ingress.responses.ids import CONVERSATION, new_token
from actors.ingress.responses.items import Item
from actors.ingress.responses.shelf import Shelf
from actors.ingress.responses.told import Told
from actors.ingress.responses.wording import ITEMS_LOST, WAITING_LOST, unknown_conversation
from actors.ingress.routing import Router, SessionUse
from actors.ingress.storing import in_time
from actors.messages import Reason, SessionMode, Stage
from actors.ports import PoolPort
from actors.records import ClaimStatus, PutStatus, SessionExists, SessionUnknown

MAX_TAKEN = 32
"""Responses that were begun and came to nothing, of which is known what they began with."""
UNKNOWN = "unknown"
"""Whether items pended."""
LOCK_WAIT_S = 5.0
LOCK_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Goes:
    """How a response goes on from what was before. `in_force`: the instructions in its context, as far as they are
    known; `tools`: those that are told in it, None where that is not known. `pending`: items to be put first.
    `goes_on`: there is something before it. `behind`: the turn before it, if it matters which: see `TurnOf`."""

    in_force: str | None = None
    tools: list[dict[str, Any]] | None = None
    pending: tuple[Item, ...] = ()
    goes_on: bool = False
    behind: str | None = None


@dataclass(slots=True, kw_only=True)
class Conversation:
    """What is listed of one. `left_out`: how many of the oldest items its record has no room for; the model sees them
    still. `taken`: by the name of each response that was begun since: which of those that pend it begins with. `lost`:
    stands for those that pended when the record had to make room; empty when there were none."""

    id: str
    created_at: int
    metadata: dict[str, str] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    pending: list[Item] = field(default_factory=list)
    in_force: str | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0
    taken: dict[str, list[str]] = field(default_factory=dict)
    lost: str = ""

    def object(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }

    def all_items(self) -> list[Item]:
        return [*self.items, *self.pending]

    def settle(self, head: str | None) -> None:
        """What the last turn of its session began with is said, though its response may not have got to tell that yet.
        None of the others that were begun can become a turn any more: they would not stand behind the same one."""
        if head is not None and head in self.taken:
            self.say(self.taken[head])
            self.taken.clear()

    def say(self, ids: Container[str]) -> None:
        self.items += [item for item in self.pending if item["id"] in ids]
        self.pending = [item for item in self.pending if item["id"] not in ids]


class Conversations:
    """Of one cluster. Raises StoreError where the store or the pool cannot be asked."""

    def __init__(self, pool: PoolPort, router: Router, shelf: Shelf) -> None:
        self._pool = pool
        self._router = router
        self._shelf = shelf

    async def create(self, tenant: str, metadata: dict[str, str], items: list[Item]) -> Conversation:
        """Raises ApiError, NoWorker."""
        made = Conversation(
            id=f"{CONVERSATION}{new_token()}", created_at=int(time.time()), metadata=metadata, pending=items
        )
        use = SessionUse(session_id=made.id, mode=SessionMode.TREE)
        try:
            await self._router.patiently(lambda: self._router.open_session(tenant, made.id, use))
        except SessionExists:
            raise AssertionError("two conversations of one random name") from None
        await self._write(tenant, made)
        return made

    async def find(self, tenant: str, conversation_id: str) -> Conversation:
        """Raises ApiError (404) also when its session has ended."""
        return (await self._read(tenant, conversation_id))[0]

    @asynccontextmanager
    async def changing(self, tenant: str, conversation_id: str) -> AsyncIterator[Conversation]:
        """Read it, change it, and have it written. One at a time, whichever replica. Raises ApiError."""
        async with self._locked(tenant, conversation_id):
            conversation, head = await self._read(tenant, conversation_id)
            conversation.settle(head)
            yield conversation
            conversation.lost = ""  # Whoever changes it was told, or puts in its place what there is to be.
            await self._write(tenant, conversation)

    async def goes(self, tenant: str, conversation_id: str, response_id: str, *, joins: bool = False) -> Goes:
        """How the next response goes on. What pends goes with the one that becomes a turn (rule S2): which that is,
        shows in the session before it does here, and so it is noted who was begun with what. `joins`: one of this name
        is to be heard, should it run; what came since that was begun is no part of it. Raises ApiError for items that
        had to make room: a response without them would be one without its history (rule T6)."""
        found, _ = await self._read(tenant, conversation_id, "conversation")
        if found.lost:
            raise unknown_conversation(conversation_id, "conversation", why=WAITING_LOST)
        if not found.pending:
            return _goes(found)
        async with self._locked(tenant, conversation_id):
            found, head = await self._read(tenant, conversation_id, "conversation")
            found.settle(head)
            if response_id == head:  # It is sent again, and was said: what waits now came since.
                return replace(_goes(found), pending=())
            pending = found.pending
            if joins and response_id in found.taken:
                pending = [item for item in pending if item["id"] in found.taken[response_id]]
            elif pending:
                found.taken[response_id] = [item["id"] for item in pending]
                for oldest in list(found.taken)[:-MAX_TAKEN]:
                    del found.taken[oldest]
            await self._write(tenant, found)
        goes = replace(_goes(found), pending=tuple(pending))
        return replace(goes, behind=head or "") if found.pending else goes

    async def said(self, tenant: str, conversation_id: str, told: Told, goes: Goes) -> None:
        """A response is part of it now, with all that it was asked with. Said twice, it is there once."""
        spoken = {item["id"] for item in goes.pending}
        async with self._locked(tenant, conversation_id):
            conversation, _ = await self._read(tenant, conversation_id, "conversation")
            conversation.pending = [item for item in conversation.pending if item["id"] not in spoken]
            conversation.taken.pop(told.id, None)
            if conversation.lost == _stands_for(goes.pending).hex():
                conversation.lost = ""  # They are not lost: these are they.
            known, output = {item["id"] for item in conversation.items}, told.output()
            # The ids of what was asked with are made anew by each who sends it; those of the reply are its own.
            asked_with = () if any(item["id"] in known for item in output) else told.items
            conversation.items += [item for item in (*goes.pending, *asked_with, *output) if item["id"] not in known]
            conversation.in_force, conversation.tools = told.in_force, told.tools
            await self._write(tenant, conversation)

    async def forget(self, tenant: str, conversation_id: str) -> None:
        await self._shelf.save(tenant, _name(conversation_id), b"")

    async def _read(
        self, tenant: str, conversation_id: str, param: str = "conversation_id"
    ) -> tuple[Conversation, str | None]:
        """And its session's last turn, which is at least as old."""
        try:
            session = await in_time(self._pool.get_session(tenant, conversation_id))
        except SessionUnknown:
            raise unknown_conversation(conversation_id, param) from None
        body, digest = await self._shelf.load(tenant, _name(conversation_id))
        if not body and not session.turns:
            raise unknown_conversation(conversation_id, param, why=ITEMS_LOST)
        if not body:  # Its record had to make room for others; what the model has seen is there.
            since = int(session.last_active_at)
            lost = UNKNOWN if digest is None else digest.hex()
            return Conversation(id=conversation_id, created_at=since, left_out=1, lost=lost), session.head
        return Conversation(**orjson.loads(body)), session.head

    async def _write(self, tenant: str, conversation: Conversation) -> None:
        most = self._shelf.most_bytes
        body = orjson.dumps(asdict(conversation))
        while 0 < most < len(body) and conversation.items:
            cut = (len(conversation.items) + 1) // 2
            conversation.items = conversation.items[cut:]
            conversation.left_out += cut
            body = orjson.dumps(asdict(conversation))
        stands_for = _stands_for(conversation.pending)
        if await self._shelf.save(tenant, _name(conversation.id), body, stands_for) is PutStatus.TOO_LARGE:
            text = f"The items that wait for the next response take more than {most} bytes."
            raise ApiError(Reason.TOO_LARGE, text, param="items", stage=Stage.ROUTING)

    @asynccontextmanager
    async def _locked(self, tenant: str, conversation_id: str) -> AsyncIterator[None]:
        """A claim serves as the lock: it lapses should its holder die."""
        key, owner = f"\x1fconversation-lock {conversation_id}", uuid.uuid4().hex
        try:
            await self._lock(tenant, key, owner)
            yield
        finally:  # Also of a lock that was perhaps had: nothing happens where another has it.
            await asyncio.shield(in_time(self._pool.release_result(tenant, key, owner=owner)))

    async def _lock(self, tenant: str, key: str, owner: str) -> None:
        give_up_at = time.monotonic() + LOCK_WAIT_S
        while True:
            claim = await in_time(self._pool.claim_result(tenant, key, digest=b"", owner=owner))
            if claim.status is ClaimStatus.CLAIMED:
                return
            if time.monotonic() > give_up_at:
                text = "The conversation is being changed by others. Please try again."
                raise ApiError(Reason.SESSION_BUSY, text, param="conversation", stage=Stage.ROUTING)
            await asyncio.sleep(LOCK_PAUSE_S)


def _goes(found: Conversation) -> Goes:
    goes_on = bool(found.items or found.left_out)
    return Goes(found.in_force, found.tools, tuple(found.pending), goes_on=goes_on)


def _stands_for(pending: Sequence[Item]) -> bytes:
    """A digest of the items that pend; empty for none."""
    names = "\n".join(item["id"] for item in pending)
    return hashlib.blake2b(names.encode(), digest_size=16).digest() if pending else b""


def _name(conversation_id: str) -> str:
    return f"conversation {conversation_id}"
