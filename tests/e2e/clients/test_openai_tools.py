"""Tools and structured output through the real `openai` client, against a real HTTP server.

The model writes at random and is held by grammars.
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from tests.e2e.clients.place import Place
from tests.ingress.keyed import ACME


class Unit(str, Enum):
    C = "celsius"
    F = "fahrenheit"


class Weather(BaseModel):
    """The weather of a city."""

    unit: Unit
    days: int = Field(ge=1, le=9)


class Step(BaseModel):
    number: int = Field(ge=0, le=99)
    done: bool


class Plan(BaseModel):
    steps: list[Step] = Field(min_length=1, max_length=2)


def client_of(place: Place) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{place.url}/v1", api_key=ACME, max_retries=0)


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_two_steps_with_a_tool_that_has_to_be_called(place: Place) -> None:
    """tool_choice required, then the result, then text; and the same in a session with the result alone (S1)."""
    client = client_of(place)
    tool = openai.pydantic_function_tool(Weather)
    common: dict[str, Any] = {"model": "toy", "tools": [tool], "max_tokens": 300}
    first = client.chat.completions.create(messages=user("hi"), tool_choice="required", seed=1, **common)
    assert first.choices[0].finish_reason == "tool_calls"
    assert first.choices[0].message.content is None
    calls = first.choices[0].message.tool_calls
    assert calls
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in calls]
    messages = [*user("hi"), first.choices[0].message.model_dump(exclude_none=True), *results]
    last = client.chat.completions.create(messages=messages, tool_choice="none", **{**common, "max_tokens": 8})
    assert last.choices[0].message.content
    assert last.choices[0].message.tool_calls is None
    name = place.name("s")
    session: dict[str, Any] = {"extra_body": {"session": {"id": name, "create": True}}, **common}
    one = client.chat.completions.create(messages=user("hi"), tool_choice="required", seed=1, **session)
    again: Any = [
        {"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in one.choices[0].message.tool_calls or ()
    ]
    two = client.chat.completions.create(
        model="toy", tools=[tool], messages=again, max_tokens=8, extra_body={"session": {"id": name}}
    )
    assert one.usage is not None
    assert two.usage is not None
    assert two.usage.prompt_tokens_details is not None
    assert two.usage.prompt_tokens_details.cached_tokens in (one.usage.total_tokens, one.usage.total_tokens - 1)


def test_an_agent_that_sends_everything_in_a_session(place: Place) -> None:
    """S1, K1: the message goes back as the client has it, and is met with its own tokens; once edited it is not."""
    client = client_of(place)
    session = {"session": {"id": place.name("everything"), "create": True, "messages": "all"}}
    tool = openai.pydantic_function_tool(Weather)
    ask: dict[str, Any] = {"model": "toy", "tools": [tool], "max_tokens": 300, "seed": 1, "extra_body": session}
    messages: list[Any] = user("hi")
    totals, cached = [], []
    for _ in range(3):
        answer = client.chat.completions.create(messages=messages, tool_choice="required", **ask)
        message = answer.choices[0].message
        assert message.tool_calls
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        totals.append(answer.usage.total_tokens)
        cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
        results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls]
        messages = [*messages, message.model_dump(), *results]
    assert all(kept >= total - 1 for kept, total in zip(cached[1:], totals, strict=False))
    made = messages[-1 - len(results)]["tool_calls"][0]["function"]
    made["arguments"] = json.dumps({"unit": "celsius", "days": 1, "edited": True})
    other = client.chat.completions.create(messages=messages, tool_choice="none", **{**ask, "max_tokens": 8})
    assert other.usage is not None
    assert other.usage.prompt_tokens_details is not None
    assert (other.usage.prompt_tokens_details.cached_tokens or 0) < totals[-1] - 1


def test_tools_and_answers_are_parsed_into_types(place: Place) -> None:
    """`.parse`: a strict tool, and a response_format."""
    client = client_of(place)
    called = client.chat.completions.parse(
        model="toy",
        messages=user("hi"),
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice={"type": "function", "function": {"name": "Weather"}},
        max_tokens=300,
        seed=2,
    )
    calls = called.choices[0].message.tool_calls
    assert calls
    assert isinstance(calls[0].function.parsed_arguments, Weather)
    answered = client.chat.completions.parse(
        model="toy", messages=user("hi"), response_format=Plan, max_tokens=400, seed=2
    )
    assert isinstance(answered.choices[0].message.parsed, Plan)


def test_a_streamed_call_is_put_together_by_the_client(place: Place) -> None:
    client = client_of(place)
    with client.chat.completions.stream(
        model="toy",
        messages=user("hi"),
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=300,
        seed=4,
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert len(done) == 1
    assert isinstance(done[0].parsed_arguments, Weather)
    pieces = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(event.arguments_delta for event in pieces) == done[0].arguments
    assert final.choices[0].finish_reason == "tool_calls"
    call = (final.choices[0].message.tool_calls or [])[0]
    assert call.id.startswith("call_")
    assert json.loads(call.function.arguments) == json.loads(done[0].arguments)


def test_wrong_tools_are_the_clients_bad_requests(place: Place) -> None:
    client = client_of(place)
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(
            model="toy", messages=user("hi"), tools=[{"type": "function", "function": {"name": "no good"}}]
        )
    assert wrong.value.param == "tools[0].function.name"
