"""The routes of /v1/conversations."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from actors.ingress.auth import caller_of
from actors.ingress.core import Ingress
from actors.ingress.errors import ApiError, Invalid
from actors.ingress.plain_routes import JsonAnswer, body_fields
from actors.ingress.responses.body import check_include, read_metadata
from actors.ingress.responses.conversations import Conversation, Conversations
from actors.ingress.responses.ids import is_conversation
from actors.ingress.responses.items import Item, read_items
from actors.ingress.responses.paging import listed, page_of
from actors.ingress.responses.wording import unknown_conversation
from actors.ingress.validate import Fields
from actors.messages import Reason, Stage
from actors.records import SessionUnknown

MAX_ADDED = 20
"""Items that are added at once, as in the OpenAI API."""


class ConversationRoutes:
    def __init__(self, conversations: Conversations) -> None:
        self._all = conversations

    async def create(self, ingress: Ingress, request: Request) -> Response:
        """POST /v1/conversations {"items"?, "metadata"?}: opens its session."""
        fields = await body_fields(ingress, request, optional=True)
        items = read_items(fields.raw("items"), "items", most=MAX_ADDED) if fields.raw("items") is not None else []
        made = await self._all.create(_tenant(request), read_metadata(fields) or {}, items)
        return JsonAnswer(made.object())

    async def get(self, ingress: Ingress, request: Request) -> Response:
        return JsonAnswer((await self._find(request)).object())

    async def update(self, ingress: Ingress, request: Request) -> Response:
        """POST /v1/conversations/{id} {"metadata"}: in place of what there was."""
        metadata = read_metadata(await body_fields(ingress, request))
        if metadata is None:
            raise Invalid("metadata", "`metadata` is missing.", code="missing_required_parameter")
        async with self._all.changing(_tenant(request), _id(request)) as conversation:
            conversation.metadata = metadata
        return JsonAnswer(conversation.object())

    async def delete(self, ingress: Ingress, request: Request) -> Response:
        """Its session is closed, what runs in it first comes to its end. Responses that were made in it stay until they
        are deleted, or expire."""
        tenant, conversation_id = _tenant(request), _id(request)
        ingress.router.forget(tenant, conversation_id)
        try:
            await ingress.pool.close_session(tenant, conversation_id, abort_running=False)
        except SessionUnknown:
            raise unknown_conversation(conversation_id) from None
        await self._all.forget(tenant, conversation_id)
        return JsonAnswer({"id": conversation_id, "object": "conversation.deleted", "deleted": True})

    async def add_items(self, ingress: Ingress, request: Request) -> Response:
        """POST …/items {"items"}: they wait for the next response, which begins with them."""
        fields = await body_fields(ingress, request)
        check_include(_included(request))
        items = read_items(_required(fields, "items"), "items", most=MAX_ADDED)
        async with self._all.changing(_tenant(request), _id(request)) as conversation:
            conversation.pending += items
        return JsonAnswer(page_of(items))

    async def list_items(self, ingress: Ingress, request: Request) -> Response:
        check_include(_included(request))
        return JsonAnswer(listed((await self._find(request)).all_items(), request.query_params))

    async def get_item(self, ingress: Ingress, request: Request) -> Response:
        check_include(_included(request))
        return JsonAnswer(_item(await self._find(request), request.path_params["item_id"]))

    async def delete_item(self, ingress: Ingress, request: Request) -> Response:
        """DELETE …/items/{id}: one that no response has seen. Of what the model has seen nothing can be taken back."""
        item_id = request.path_params["item_id"]
        async with self._all.changing(_tenant(request), _id(request)) as conversation:
            item = _item(conversation, item_id)
            if item not in conversation.pending:
                text = "This item is part of the conversation's history, which is never rewritten."
                raise Invalid("item_id", text, code="item_in_history")
            conversation.pending.remove(item)
        return JsonAnswer(conversation.object())

    async def _find(self, request: Request) -> Conversation:
        return await self._all.find(_tenant(request), _id(request))


def _item(conversation: Conversation, item_id: str) -> Item:
    found = next((item for item in conversation.all_items() if item["id"] == item_id), None)
    if found is None:
        text = "The conversation has no item of this id."
        raise ApiError(Reason.SESSION_UNKNOWN, text, param="item_id", stage=Stage.ROUTING, code="item_not_found")
    return found


def _required(fields: Fields, name: str) -> Any:
    value = fields.raw(name)
    if value is None:
        raise Invalid(name, f"`{name}` is missing.", code="missing_required_parameter")
    return value


def _included(request: Request) -> list[Any]:
    query = request.query_params
    return [*query.getlist("include"), *query.getlist("include[]")]


def _tenant(request: Request) -> str:
    return caller_of(request.scope).tenant


def _id(request: Request) -> str:
    """Raises ApiError (404) for what no conversation can be called."""
    given = str(request.path_params["conversation_id"])
    if not is_conversation(given):
        raise unknown_conversation(given)
    return given
