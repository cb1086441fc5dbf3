"""Tools, structured output and reasoning through the real `openai` client, against a real HTTP server.

The model writes at random and is held by grammars; where it has to say something, it says what a script has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from actors.ingress.toy_text import TOY_VOCAB_BYTES, toy_text
from actors.runner.script import ScriptRunner
from configs import EngineConfig
from tests.ingress.web import Web, serving

ENGINE = EngineConfig(check_invariants=True, grammar_timeout_s=60.0)


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


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with serving(tmp_path, engine=ENGINE) as made:
        yield made


def client_of(web: Web) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{web.url}/v1", api_key="none", max_retries=0)


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_two_steps_with_a_tool_that_has_to_be_called(web: Web) -> None:
    """tool_choice required, then the result, then text; and the same in a session with the result alone (S1)."""
    client = client_of(web)
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
    session: dict[str, Any] = {"extra_body": {"session": {"id": "s", "create": True}}, **common}
    one = client.chat.completions.create(messages=user("hi"), tool_choice="required", seed=1, **session)
    again: Any = [
        {"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in one.choices[0].message.tool_calls or ()
    ]
    two = client.chat.completions.create(
        model="toy", tools=[tool], messages=again, max_tokens=8, extra_body={"session": {"id": "s"}}
    )
    assert one.usage is not None
    assert two.usage is not None
    assert two.usage.prompt_tokens_details is not None
    assert two.usage.prompt_tokens_details.cached_tokens in (one.usage.total_tokens, one.usage.total_tokens - 1)


def test_tools_and_answers_are_parsed_into_types(web: Web) -> None:
    """`.parse`: a strict tool, and a response_format."""
    client = client_of(web)
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


def test_a_streamed_call_is_put_together_by_the_client(web: Web) -> None:
    client = client_of(web)
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


def test_reasoning_and_text_and_calls_of_one_reply(tmp_path: Path) -> None:
    """`reasoning_content` beside `content`, whole and streamed; parallel calls in their order."""
    call = '<tool_call>{"name": "Weather", "arguments": {"unit": "celsius", "days": %d}}</tool_call>'
    reply = f"<think>\nTwo days…\n</think>\n\nI look.\n{call % 1}\n{call % 2}"

    def runner() -> ScriptRunner:
        return ScriptRunner(list(reply.encode()), vocab_bytes=TOY_VOCAB_BYTES, eos_id=257)

    with serving(tmp_path, runner=runner, text=toy_text(reasoning="think")) as web:
        client = client_of(web)
        common: dict[str, Any] = {"model": "toy", "messages": user("hi"), "max_tokens": 400}
        common["tools"] = [openai.pydantic_function_tool(Weather)]
        common["tools"][0]["function"]["strict"] = False
        answer = client.chat.completions.create(**common).choices[0]
        assert answer.message.model_extra == {"reasoning_content": "Two days…"}
        assert answer.message.content == "I look."
        told = [json.loads(one.function.arguments)["days"] for one in answer.message.tool_calls or ()]
        assert told == [1, 2]
        reasoning, text, arguments, order = "", "", {0: "", 1: ""}, []
        for chunk in client.chat.completions.create(stream=True, **common):
            delta = chunk.choices[0].delta
            reasoning += (delta.model_extra or {}).get("reasoning_content") or ""
            text += delta.content or ""
            for piece in delta.tool_calls or ():
                arguments[piece.index] += (piece.function and piece.function.arguments) or ""
                order.append(piece.index)
        assert (reasoning, text) == ("Two days…", "I look.")
        assert order == sorted(order)
        assert [json.loads(one)["days"] for one in arguments.values()] == [1, 2]


def test_wrong_tools_are_the_clients_bad_requests(web: Web) -> None:
    client = client_of(web)
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(
            model="toy", messages=user("hi"), tools=[{"type": "function", "function": {"name": "no good"}}]
        )
    assert wrong.value.param == "tools[0].function.name"
