"""The `openai` client's Responses and Conversations as they come from the registry, against a real HTTP server."""

from __future__ import annotations

import asyncio
import time
from enum import Enum
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.e2e.clients.place import Place, expected
from tests.ingress.keyed import ACME

BRACE = {str(ord("}")): 100}
"""Makes a model that writes at random end its objects."""


class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"


class Thing(BaseModel):
    colour: Colour


def client(place: Place, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(**{"base_url": f"{place.url}/v1", "api_key": ACME, "max_retries": 0, **options})


ASK: dict[str, Any] = {"model": "toy", "temperature": 0, "max_output_tokens": 12}


def test_a_conversation_of_responses(place: Place) -> None:
    """P5, K1, E5: asked, gone on from, branched, listed, deleted."""
    made = client(place)
    first = made.responses.create(input="one", instructions="Be brief.", metadata={"a": "b"}, **ASK)
    begun = "system: Be brief.\nuser: one\nassistant: "
    assert first.output_text == expected(begun, 12)
    assert (first.status, first.metadata) == ("incomplete", {"a": "b"})
    assert first.incomplete_details is not None
    assert first.incomplete_details.reason == "max_output_tokens"
    before = f"{begun}{first.output_text}\n"
    for text in ("two", "three"):
        again = made.responses.create(input=text, previous_response_id=first.id, instructions="Be brief.", **ASK)
        assert again.output_text == expected(f"{before}user: {text}\nassistant: ", 12)
        assert again.usage is not None
        assert again.usage.output_tokens == 12
    assert made.responses.retrieve(first.id) == first
    items: Any = made.responses.input_items.list(first.id).data
    assert [item.content[0].text for item in items] == ["one"]
    made.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as gone:
        made.responses.create(input="x", previous_response_id=first.id, **ASK)
    assert gone.value.code == "previous_response_not_found"


def test_a_stream_is_gathered_to_the_response(place: Place) -> None:
    """I2: by the client's own helper, event by event."""
    made = client(place)
    ask: Any = {**ASK, "input": [{"role": "user", "content": "hi"}]}
    with made.responses.stream(**ask) as stream:
        events = list(stream)
    want = expected("user: hi\nassistant: ", 12)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == want
    last = events[-1]
    assert last.type == "response.incomplete"
    assert last.response.output_text == want
    assert made.responses.retrieve(last.response.id).output_text == want
    raw = list(made.responses.create(stream=True, **ask))
    assert [event.type for event in raw][:2] == ["response.created", "response.in_progress"]
    assert [event.sequence_number for event in raw] == list(range(len(raw)))


def test_structured_output(place: Place) -> None:
    """G01: `.parse` and the streaming helper with a type."""
    made = client(place)
    ask: Any = {"model": "toy", "max_output_tokens": 100, "input": "hi", "extra_body": {"seed": 3}}
    parsed = made.responses.parse(text_format=Thing, **ask)
    assert parsed.status == "completed"
    assert isinstance(parsed.output_parsed, Thing)
    with made.responses.stream(text_format=Thing, **ask) as stream:
        final = stream.get_final_response()
    assert final.output_parsed == parsed.output_parsed
    broken: Any = {"format": {"type": "json_schema", "name": "a", "schema": {"type": "nonsense"}}}
    with pytest.raises(openai.BadRequestError) as wrong:
        made.responses.create(text=broken, **ask)
    assert (wrong.value.code, wrong.value.param) == ("grammar_invalid", "text.format")


def test_a_tool_is_called_and_answered(place: Place) -> None:
    """An agent's two steps, statefully: only the result is sent."""
    made = client(place)
    tools: Any = [openai.pydantic_function_tool(Thing, name="paint")["function"]]
    tools = [{"type": "function", **tool} for tool in tools]
    ask: Any = {**ASK, "max_output_tokens": 200, "tools": tools}
    first = made.responses.create(
        input="Paint it.", tool_choice="required", parallel_tool_calls=False, extra_body={"logit_bias": BRACE}, **ask
    )
    (call,) = first.output
    assert call.type == "function_call"
    assert Thing.model_validate_json(call.arguments).colour in Colour
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "done"}]
    second = made.responses.create(input=result, previous_response_id=first.id, **ask)
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens


def test_in_the_background(place: Place) -> None:
    """A1, A4: polled, followed from where a stream was left, cancelled."""
    made = client(place)
    long: Any = {**ASK, "max_output_tokens": 300, "input": "hi", "background": True}
    queued = made.responses.create(**long)
    assert queued.status == "queued"
    polled = queued
    while polled.status in ("queued", "in_progress"):
        time.sleep(0.02)
        polled = made.responses.retrieve(queued.id)
    want = expected("user: hi\nassistant: ", 300)
    assert (polled.status, polled.output_text) == ("incomplete", want)

    stream = made.responses.create(stream=True, **long)
    seen, text = -1, ""
    for event in stream:
        seen = event.sequence_number
        if event.type == "response.created":
            response_id = event.response.id
        if event.type == "response.output_text.delta":
            text += event.delta
            break
    stream.close()
    for event in made.responses.retrieve(response_id, stream=True, starting_after=seen):
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == want

    running = made.responses.create(**{**long, "max_output_tokens": 5000})
    cancelled = made.responses.cancel(running.id)
    assert cancelled.status == "cancelled"
    place.wait_until_quiet()


def test_closing_a_stream_ends_its_response(place: Place) -> None:
    """A1, A6: one that was not asked for in the background."""
    made = client(place)
    stream = made.responses.create(stream=True, **{**ASK, "max_output_tokens": 5000, "input": "hi"})
    next(iter(stream))
    stream.close()
    place.wait_until_quiet()


def test_errors_are_the_clients_own_kinds(place: Place) -> None:
    """E3, E4: with a status before the first token, from within the stream after it."""
    made = client(place)
    with pytest.raises(openai.NotFoundError) as unknown:
        made.responses.retrieve("resp_nope")
    assert unknown.value.code == "response_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        made.responses.create(model="toy", input="x", truncation="auto")
    assert wrong.value.param == "truncation"
    with pytest.raises(openai.BadRequestError) as builtin:
        made.responses.create(model="toy", input="x", tools=[{"type": "web_search"}])
    assert builtin.value.param == "tools[0].type"
    long: Any = {**ASK, "max_output_tokens": 5000, "input": "x", "extra_body": {"running_timeout_s": 0.2}}
    with pytest.raises(openai.APIError) as late:
        list(made.responses.create(stream=True, **long))
    assert isinstance(late.value.body, dict)
    assert late.value.body["reason"] == "running_timeout"


def test_conversations(place: Place) -> None:
    """P5: made, gone on with, listed, changed, deleted."""
    made = client(place)
    start: Any = [{"type": "message", "role": "user", "content": "zero"}]
    conversation = made.conversations.create(items=start, metadata={"a": "b"})
    first = made.responses.create(input="one", conversation=conversation.id, **ASK)
    assert first.output_text == expected("user: zero\nuser: one\nassistant: ", 12)
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    more: Any = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "two"}]}]
    added = made.conversations.items.create(conversation.id, items=more)
    item_id = str(added.data[0].id)
    found: Any = made.conversations.items.retrieve(item_id, conversation_id=conversation.id)
    assert found.content[0].text == "two"
    listed: Any = list(made.conversations.items.list(conversation.id, order="asc", limit=2))
    assert [item.content[0].text for item in listed] == ["zero", "one", first.output_text, "two"]
    made.conversations.items.delete(item_id, conversation_id=conversation.id)
    assert made.conversations.update(conversation.id, metadata={"c": "d"}).metadata == {"c": "d"}
    assert made.conversations.retrieve(conversation.id).metadata == {"c": "d"}
    assert made.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        made.conversations.retrieve(conversation.id)


def test_many_at_once_by_the_async_client(place: Place) -> None:
    """Chains of their own do not mix."""

    async def ask_all() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(base_url=f"{place.url}/v1", api_key=ACME) as made:

            async def two(number: int) -> tuple[str, str]:
                first = await made.responses.create(input=f"q{number}", **ASK)
                second = await made.responses.create(input="more", previous_response_id=first.id, **ASK)
                return first.output_text, second.output_text

            return list(await asyncio.gather(*(two(number) for number in range(12))))

    for number, (first, second) in enumerate(asyncio.run(ask_all())):
        before = f"user: q{number}\nassistant: "
        assert first == expected(before, 12)
        assert second == expected(f"{before}{first}\nuser: more\nassistant: ", 12)


def test_log_probabilities_of_a_response(place: Place) -> None:
    """Whole, streamed, and asked for again; and those of an echoed prompt."""
    made = client(place)
    asked: Any = {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 2, **ASK}
    whole = made.responses.create(**asked)

    def tokens(response: Any) -> list[str]:
        return [one.token for one in response.output[0].content[0].logprobs]

    assert "".join(tokens(whole)) == whole.output_text
    assert [len(one.top_logprobs) for one in whole.output[0].content[0].logprobs] == [2] * 12  # type: ignore[union-attr]
    assert tokens(made.responses.retrieve(whole.id, include=asked["include"])) == tokens(whole)
    with made.responses.stream(**asked) as stream:
        events = list(stream)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert [one.token for event in deltas for one in event.logprobs] == tokens(whole)
    assert events[-1].type == "response.incomplete"
    assert tokens(events[-1].response) == tokens(whole)
    settings: Any = {"model": "toy", "temperature": 0, "max_tokens": 3}
    echoed = made.completions.create(prompt="once", echo=True, logprobs=1, **settings).choices[0]
    assert echoed.logprobs is not None
    assert echoed.logprobs.token_logprobs is not None
    assert "".join(echoed.logprobs.tokens or ()) == echoed.text
    assert [value is None for value in echoed.logprobs.token_logprobs] == [True] + [False] * 6
