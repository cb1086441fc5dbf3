"""Conversations: sessions that are gone on with, and what clients see of them: items and metadata.

The session's history is what the model sees. Beside it one record lists the items; it is written anew, under a lock,
with every change. Items that were added without a response have no turn yet: they *pend*, and stand at the beginning of
the next response's input.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson

from actors.ingress.errors import ApiError
from actors.ingress.responses.ids import CONVERSATION, new_token
from actors.ingress.responses.items import Item
from actors.ingress.responses.shelf import Shelf
from actors.ingress.responses.told import Told
from actors.ingress.responses.wording import ITEMS_LOST, unknown_conversation
from actors.ingress.routing import Router, SessionUse
from actors.ingress.storing import in_time
from actors.messages import Reason, SessionMode, Stage
from actors.ports import PoolPort
from actors.records import ClaimStatus, PutStatus, SessionExists, SessionUnknown

LOCK_WAIT_S = 5.0
LOCK_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Goes:
    """How a response goes on from what was before. `in_force`: the instructions in its context, as far as they are
    known; `tools`: those that are told in it, None where that is not known. `pending`: items to be put first.
    `goes_on`: there is something before it."""

    in_force: str | None = None
    tools: list[dict[str, Any]] | None = None
    pending: tuple[Item, ...] = ()
    goes_on: bool = False


@dataclass(slots=True, kw_only=True)
class Conversation:
    """What is listed of one. `left_out`: how many of the oldest items its record has no room for; the model sees them
    still."""

    id: str
    created_at: int
    metadata: dict[str, str] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    pending: list[Item] = field(default_factory=list)
    in_force: str | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0

    def object(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "conversation",
            "created_at": self.created_at,
            "metadata": self.metadata,
        }

    def all_items(self) -> list[Item]:
        return [*self.items, *self.pending]


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
        return await self._read(tenant, conversation_id)

    @asynccontextmanager
    async def changing(self, tenant: str, conversation_id: str) -> AsyncIterator[Conversation]:
        """Read it, change it, and have it written. One at a time, whichever replica. Raises ApiError."""
        async with self._locked(tenant, conversation_id):
            conversation = await self.find(tenant, conversation_id)
            yield conversation
            await self._write(tenant, conversation)

    async def goes(self, tenant: str, conversation_id: str) -> Goes:
        """How the next response goes on."""
        found = await self._read(tenant, conversation_id, "conversation")
        return Goes(found.in_force, found.tools, tuple(found.pending), goes_on=bool(found.items or found.left_out))

    async def said(self, tenant: str, conversation_id: str, told: Told, goes: Goes) -> None:
        """A response is part of it now, with all that it was asked with. Said twice, it is there once."""
        spoken = {item["id"] for item in goes.pending}
        async with self._locked(tenant, conversation_id):
            conversation = await self._read(tenant, conversation_id, "conversation")
            conversation.pending = [item for item in conversation.pending if item["id"] not in spoken]
            known = {item["id"] for item in conversation.items}
            fresh = [item for item in (*goes.pending, *told.items, *told.output()) if item["id"] not in known]
            conversation.items += fresh
            conversation.in_force, conversation.tools = told.in_force, told.tools
            await self._write(tenant, conversation)

    async def forget(self, tenant: str, conversation_id: str) -> None:
        await self._shelf.save(tenant, _name(conversation_id), b"")

    async def _read(self, tenant: str, conversation_id: str, param: str = "conversation_id") -> Conversation:
        try:
            session = await in_time(self._pool.get_session(tenant, conversation_id))
        except SessionUnknown:
            raise unknown_conversation(conversation_id, param) from None
        body = await self._shelf.load(tenant, _name(conversation_id))
        if not body and not session.turns:
            raise unknown_conversation(conversation_id, param, why=ITEMS_LOST)
        if not body:  # Its record had to make room for others; what the model has seen is there.
            return Conversation(id=conversation_id, created_at=int(session.last_active_at), left_out=1)
        return Conversation(**orjson.loads(body))

    async def _write(self, tenant: str, conversation: Conversation) -> None:
        most = self._shelf.most_bytes
        body = orjson.dumps(asdict(conversation))
        while 0 < most < len(body) and conversation.items:
            cut = (len(conversation.items) + 1) // 2
            conversation.items = conversation.items[cut:]
            conversation.left_out += cut
            body = orjson.dumps(asdict(conversation))
        if await self._shelf.save(tenant, _name(conversation.id), body) is PutStatus.TOO_LARGE:
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


def _name(conversation_id: str) -> str:
    return f"conversation {conversation_id}"
