"""One POST /v1/responses on its way through the exchange that all routes share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from actors.ingress.channel import spawn
from actors.ingress.choices import Choice
from actors.ingress.core import Ingress, refused_by_template
from actors.ingress.errors import ApiError
from actors.ingress.generation import GenerationRequest
from actors.ingress.prompts import ChatPrompt
from actors.ingress.responses.body import Asked, read_response
from actors.ingress.responses.conversations import Conversations, Goes
from actors.ingress.responses.ids import Kind, ResponseId, new_token, token_of
from actors.ingress.responses.items import as_messages
from actors.ingress.responses.live import Book, Link, Live
from actors.ingress.responses.predecessors import close_unused, fork, goes_after, place
from actors.ingress.responses.shelf import Deleted, Mark, NotKept, Shelf
from actors.ingress.responses.told import Told
from actors.ingress.responses.tools import check_shown
from actors.ingress.responses.voice import ResponseVoice
from actors.ingress.responses.wording import NOT_STORED, explained, key_expired, unknown_response
from actors.ingress.storing import STORE_WAIT_S, stubbornly
from actors.ingress.text import TextModel
from actors.ingress.voice import Voice
from actors.messages import Reason, Stage
from actors.records import StoreError
from configs import RemoraConfig


@dataclass(frozen=True, slots=True)
class Tools:
    """What one replica's responses share."""

    ingress: Ingress
    shelf: Shelf
    conversations: Conversations
    book: Book


class ResponseCall:
    """The `Api` and the `Keeping` of one request. It cuts the link to the client when that asked for `background`."""

    def __init__(self, tools: Tools, tenant: str, link: Link) -> None:
        self._tools = tools
        self._tenant = tenant
        self._link = link
        self._asked: Asked
        self._id: ResponseId
        self._digest = b""
        self._named = False
        self._told: Told
        self._live: Live | None = None
        self._mark: Mark | None = None
        self._owns = True
        """Whether its record is this request's to write: not where it repeats one that runs."""
        self._goes = Goes()
        self._places_instructions = False
        self._kept = False

    # -- Api -------------------------------------------------------------------------------------------------------

    def read(
        self, tree: dict[str, Any], headers: Mapping[str, str], text: TextModel, config: RemoraConfig
    ) -> GenerationRequest:
        asked, request = read_response(tree, headers, text=text, config=config)
        self._asked, self._digest = asked, request.digest
        own = token_of(request.rid) if request.named else new_token()
        self._id, session = place(asked, own)
        self._named = request.named
        self._told = Told(
            id=str(self._id),
            own=own,
            model=text.name,
            created_at=int(time.time()),
            echo=asked.echo,
            items=asked.items,
            in_force=asked.instructions,
        )
        if asked.background:
            self._link.cut()
            request = replace(request, stream=True, resume=True)  # Whoever follows it sees the end of it all the same.
        return replace(request, rid=str(self._id), session=session)

    def voice(self, request: GenerationRequest, text: TextModel) -> Voice:
        return ResponseVoice(self._told, self.explained)

    def refusal(self, error: ApiError, request_id: str) -> Mapping[str, Any]:
        explained = self.explained(error)
        if self._live is not None and not self._told.over:
            self._told.fail(explained, request_id)  # Others may follow it.
        return explained.body(request_id)

    def explained(self, error: ApiError) -> ApiError:
        """In the words of this route."""
        asked = getattr(self, "_asked", None)
        return explained(error, asked, places_instructions=self._places_instructions)

    # -- Keeping ---------------------------------------------------------------------------------------------------

    async def arrange(self, request: GenerationRequest) -> GenerationRequest:
        """Where it goes on, and with what. Raises ApiError."""
        asked, instructions = self._asked, self._asked.instructions
        if asked.store:
            try:
                first = await self._sent_before()
                request = await self._continued(request)
            except StoreError as error:
                message = "The session store cannot be reached, so that what came before cannot be had."
                raise ApiError(Reason.INTERNAL, message, stage=Stage.ROUTING) from error
            if first is not None:
                self._told.created_at, self._told.completed_at = first.created_at, first.completed_at
        if instructions is not None and instructions == self._goes.in_force:
            instructions = None  # They stand in the context already.
        self._places_instructions = instructions is not None and self._goes.goes_on
        if self._told.in_force is None:
            self._told.in_force = self._goes.in_force
        opening = [] if instructions is None else [{"role": "system", "content": instructions}]
        messages = [*opening, *as_messages([*self._goes.pending, *asked.items])]
        prompt = request.prompts[0]
        assert isinstance(prompt, ChatPrompt)
        prompt = replace(prompt, messages=messages)
        self._tell_tools(prompt)
        return replace(request, prompts=(prompt,))

    def _tell_tools(self, prompt: ChatPrompt) -> None:
        """See that the model knows its tools. Raises ApiError."""
        before = self._goes.tools
        self._told.tools = prompt.tools or before or []
        if self._goes.goes_on and before is not None:
            try:
                check_shown(prompt, self._tools.ingress.text, before)
            except ValueError as error:
                raise refused_by_template(str(error)) from error

    async def begun(self, choices: Sequence[Choice]) -> None:
        """It is on its way to a worker: from here on it can be asked for. Raises ApiError."""
        choice = choices[0]
        self._told.parts = choice.parts
        if not self._asked.store:
            return
        if self._asked.background:
            try:
                self._mark = await self._tools.shelf.begin(self._tenant, self._told, self._digest)
            except StoreError as error:
                message = "The session store cannot be reached, so that this could not be asked for later."
                raise ApiError(Reason.INTERNAL, message, stage=Stage.ROUTING) from error
            self._owns = self._mark is not None
        self._live = self._link.live = Live(self._told, choice.running)
        if self._owns:
            self._tools.book.add(self._tenant, self._live)
        self._link.accept()

    async def ended(self, choices: Sequence[Choice], failure: ApiError | None, request_id: str) -> None:
        """Before anybody is told of the end."""
        told, end = self._told, choices[0].end
        if told.completed_at is None or end is None or not end.replayed:
            told.completed_at = int(time.time())
        if failure is not None:
            told.fail(self.explained(failure), request_id)
        else:
            told.end = end
        told.reasoning_tokens = choices[0].reasoning_tokens or 0
        if not self._asked.store or not self._owns or self._kept:
            return
        if failure is not None and not (self._asked.background or choices[0].opened):
            return  # The client has an HTTP status, and never heard of this response.
        self._kept = True
        work = spawn(self._keep(replayed=end is not None and end.replayed))
        await asyncio.wait({work}, timeout=STORE_WAIT_S)

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _continued(self, request: GenerationRequest) -> GenerationRequest:
        """With what came before it. Raises ApiError."""
        asked = self._asked
        if asked.conversation is not None:
            conversations, joins = self._tools.conversations, request.join
            self._goes = await conversations.goes(self._tenant, asked.conversation, self._told.id, joins=joins)
            assert request.session is not None, "a conversation is a session"
            request = replace(request, session=replace(request.session, behind=self._goes.behind))
        if asked.previous is None:
            return request
        previous = ResponseId.parse(asked.previous)
        if previous is None:
            raise unknown_response(asked.previous, param="previous_response_id")
        if previous.kind is Kind.STATELESS:
            raise unknown_response(asked.previous, NOT_STORED, param="previous_response_id")
        ingress, shelf = self._tools.ingress, self._tools.shelf
        self._goes = await goes_after(ingress, shelf, self._tenant, previous, surely=asked.background)
        if previous.kind is Kind.CONVERSATION:
            await fork(ingress, self._tenant, previous, self._id.session_id)
        return request

    async def _keep(self, *, replayed: bool) -> None:
        tools, told = self._tools, self._told
        try:
            if told.end is not None and told.status != "cancelled" and not replayed:
                await self._join_conversation()
            await tools.shelf.keep(self._tenant, told, self._digest, self._mark.owner if self._mark else "")
        finally:
            self.over()

    async def _join_conversation(self) -> None:
        conversation, tools = self._asked.conversation, self._tools
        if conversation is None:
            return
        said = partial(tools.conversations.said, self._tenant, conversation, self._told, self._goes)
        await stubbornly(said, "a response is missing among the items of its conversation")

    async def _sent_before(self) -> Told | None:
        """The response to a request of this name, if there is one (rule T2). Raises ApiError, StoreError."""
        try:
            return (await self._tools.shelf.find(self._tenant, self._told.id)).told if self._named else None
        except Deleted:
            raise key_expired("was deleted") from None
        except NotKept:
            return None

    def over(self) -> None:
        """Nobody works on it any more."""
        if self._mark is not None:
            self._mark.stop()
        if self._live is None:
            return
        if not self._told.over:
            text = "The client that asked for this response has left."
            self._told.fail(ApiError(Reason.CLIENT_DISCONNECT, text), "")
        self._tools.book.remove(self._tenant, self._live)
        own_session = self._id.kind is Kind.CHAIN and self._id.chain == self._id.own
        if own_session and not self._named and self._told.status in ("failed", "cancelled"):
            spawn(close_unused(self._tools.ingress, self._tenant, self._id.session_id))

    @property
    def live(self) -> Live | None:
        return self._live

    @property
    def asked(self) -> Asked:
        return self._asked

    @property
    def kept(self) -> bool:
        """Whether its record is being written, or was."""
        return self._kept
