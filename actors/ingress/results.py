"""Exactly once for requests without a session (rule T2): their key is claimed in the store before they run, and their
result kept under it. Turns need none of this: a session's history is its own record.

A claim names the worker, so that who sends the request again can join it there. It lapses when nobody renews it: an
ingress that dies leaves its keys free after a while. Who has joined offers the result to the store, too: whoever made
the claim may have left by then.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass

import msgpack

from actors.ingress.channel import Batch, spawn
from actors.ingress.errors import ApiError
from actors.ingress.storing import STORE_WAIT_S, in_time, renewed, stubbornly
from actors.messages import Finished, Outcome, Reason, Stage, Submit, TokenIds
from actors.ports import PoolPort
from actors.records import ClaimStatus, ResultClaim, ResultRecord, StoreError
from actors.wire import pack_ids, unpack_ids

log = logging.getLogger(__name__)

HEADER = "Idempotency-Key"


@dataclass(frozen=True, slots=True)
class Go:
    """Where the request is to be sent. `only_join`: it runs there already, and must not begin anew."""

    worker_id: str
    only_join: bool = False


class Keeper:
    """The claim of one request. `settle` or `drop` it when the request is over."""

    def __init__(self, pool: PoolPort, submit: Submit) -> None:
        self._pool = pool
        self._tenant, self._key, self._digest, self._join = submit.tenant, submit.rid, submit.digest, submit.join
        self._name = ""
        """What this attempt, or the one that it joined, is called in the store."""
        self._owner = ""
        """The same, while it has the claim."""
        self._had_claim = False
        self._renewing: asyncio.Task[None] | None = None

    async def claim(self, worker_id: str) -> Go | Batch:
        """Leave to run it on this worker, or where it runs, or its stored result.

        Raises ApiError: the key has another body, its result is forgotten, it runs and is not to be joined, or the
        store cannot say. A request that has had the claim, and lost its worker, joins whoever was faster since.
        """
        await self._release()
        owner = self._name = f"{worker_id} {uuid.uuid4().hex}"
        try:
            found = await in_time(self._claim(owner))
        except StoreError as error:
            spawn(self._give_up(owner))  # It may have been claimed all the same.
            message = "The session store cannot be reached, so that it is unknown whether this request was answered."
            raise ApiError(Reason.INTERNAL, message, stage=Stage.ROUTING) from error
        except asyncio.CancelledError:
            spawn(self._give_up(owner))
            raise
        if found.status is ClaimStatus.CLAIMED:
            self._owner, self._had_claim = owner, True
            self._renewing = spawn(renewed(lambda: self._claim(owner), "a claim"))
            return Go(worker_id)
        if found.status is ClaimStatus.DONE:
            return _unpack(found.record)
        if found.status is ClaimStatus.RUNNING and (self._join or self._had_claim):
            # Whoever began it may die before it ends: who hears the end keeps it, in its name.
            self._name = found.record.owner
            return Go(found.record.owner.partition(" ")[0], only_join=True)
        raise _refused(found.status)

    async def settle(self, end: Finished, ids: TokenIds) -> None:
        """Keep the result of a request that ended by itself; any other end leaves the key as if it had never been.

        The answer does not depend on it: where the store fails for long, the claim lapses, and a repetition runs anew.
        """
        if end.outcome is Outcome.ABORT:
            await self._release()
            return
        self._forget()
        body = _pack(end, ids)
        # Neither a client that leaves meanwhile nor the end of our patience ends the work itself.
        await asyncio.wait({spawn(self._put(self._name, body))}, timeout=STORE_WAIT_S)

    def drop(self) -> None:
        """The request is over without a result."""
        owner = self._forget()
        if owner:
            spawn(self._give_up(owner))

    def _claim(self, owner: str) -> Awaitable[ResultClaim]:
        return self._pool.claim_result(self._tenant, self._key, digest=self._digest, owner=owner)

    async def _put(self, owner: str, body: bytes) -> None:
        """Nothing happens where another attempt has the claim, or has stored the result."""

        async def put() -> None:
            await in_time(self._pool.put_result(self._tenant, self._key, digest=self._digest, owner=owner, body=body))

        await stubbornly(put, "a result could not be kept, so that its key will run anew")

    async def _release(self) -> None:
        owner = self._forget()
        if owner:
            await asyncio.shield(spawn(self._give_up(owner)))  # Also for a client that leaves meanwhile.

    async def _give_up(self, owner: str) -> None:
        try:
            await in_time(self._pool.release_result(self._tenant, self._key, owner=owner))
        except StoreError as error:
            log.warning("a claim could not be given up, and will lapse: %s", error)

    def _forget(self) -> str:
        owner, self._owner = self._owner, ""
        if self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None
        return owner


def rest_of(result: Batch, told: TokenIds) -> Batch:
    """What is still to be told of a stored result, to who has joined the request and lost it. Raises ApiError when that
    was another text: a request's arithmetic may differ from worker to worker (rule I3)."""
    if result.ids[: len(told)] != told:
        message = "The request's worker was lost, and it was answered otherwise elsewhere. Please send it again."
        raise ApiError(Reason.WORKER_LOST, message, stage=Stage.ROUTING)
    return Batch(result.ids[len(told) :], result.end)


def _refused(status: ClaimStatus) -> ApiError:
    if status is ClaimStatus.RUNNING:
        message = "A request of this key is running; set `on_duplicate` to `join`, wait for its end, or abort it."
        return ApiError(Reason.SESSION_BUSY, message, param=HEADER, stage=Stage.ROUTING)
    if status is ClaimStatus.EXPIRED:
        message = "A request of this key was answered; its result is no longer kept. Use another key to run it anew."
        code = "idempotency_key_expired"
        return ApiError(Reason.INVALID, message, param=HEADER, stage=Stage.ROUTING, code=code)
    message = "This key was used with another body."
    code = "idempotency_key_reused"
    return ApiError(Reason.INVALID, message, param=HEADER, stage=Stage.ROUTING, code=code, status=422)


def _pack(end: Finished, ids: TokenIds) -> bytes:
    kept = (1, end.outcome.value, end.matched, end.prompt_tokens, end.cached_tokens, pack_ids(ids))
    body: bytes = msgpack.packb(kept)
    return body


def _unpack(record: ResultRecord) -> Batch:
    _, outcome, matched, prompt_tokens, cached_tokens, packed = msgpack.unpackb(record.body)
    ids = unpack_ids(packed)
    end = Finished(
        ingress="",
        key="",
        outcome=Outcome(outcome),
        matched=matched,
        prompt_tokens=prompt_tokens,
        completion_tokens=len(ids),
        cached_tokens=cached_tokens,
        replayed=True,
    )
    return Batch(ids, end)
