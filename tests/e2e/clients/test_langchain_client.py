"""`langchain-openai` as it comes from the registry: tools bound to a chat, an agent's two steps, typed answers."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr

from tests.e2e.clients.place import Place
from tests.ingress.keyed import ACME

pytestmark = pytest.mark.filterwarnings("ignore")  # Its own warnings are its own business.


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@tool
def today() -> str:
    """What day it is."""
    return "Monday"


TOOLS = {"multiply": multiply, "today": today}


class Person(BaseModel):
    """Somebody."""

    age: int = Field(ge=0, le=150)
    awake: bool


def chat(place: Place, **options: Any) -> ChatOpenAI:
    settings: dict[str, Any] = {"model": "toy", "max_tokens": 400, "max_retries": 0, "seed": 3, **options}
    return ChatOpenAI(base_url=f"{place.url}/v1", api_key=SecretStr(ACME), **settings)


def test_an_agents_two_steps(place: Place) -> None:
    """The model calls, the tools answer, the model goes on: with each call's id in its result."""
    model = chat(place)
    messages: list[Any] = [SystemMessage("Be brief."), HumanMessage("What is 6 times 7?")]
    asked = model.bind_tools(list(TOOLS.values()), tool_choice="required").invoke(messages)
    assert isinstance(asked, AIMessage)
    assert asked.tool_calls
    assert not asked.invalid_tool_calls
    assert asked.response_metadata["finish_reason"] == "tool_calls"
    messages.append(asked)
    for call in asked.tool_calls:
        answer = TOOLS[call["name"]].invoke(call)
        assert isinstance(answer, ToolMessage)
        assert answer.tool_call_id == call["id"]
        messages.append(answer)
    final = model.bind_tools(list(TOOLS.values())).bind(max_tokens=8).invoke(messages)
    assert isinstance(final, AIMessage)
    assert final.content
    assert not final.tool_calls
    assert final.usage_metadata is not None
    assert final.usage_metadata["output_tokens"] == 8


def test_streamed_calls_are_put_together(place: Place) -> None:
    model = chat(place).bind_tools([multiply], tool_choice="multiply")
    whole: Any = None
    for chunk in model.stream("What is 6 times 7?"):
        whole = chunk if whole is None else whole + chunk
    assert [call["name"] for call in whole.tool_calls] == ["multiply"]
    assert set(whole.tool_calls[0]["args"]) == {"a", "b"}
    assert model.invoke("What is 6 times 7?").tool_calls[0]["args"] == whole.tool_calls[0]["args"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_answers_have_a_type(place: Place, method: Any) -> None:
    """Both ways that LangChain knows: a tool that has to be called, once; and a schema of the answer."""
    made = chat(place).with_structured_output(Person, method=method).invoke("Who is there?")
    assert isinstance(made, Person)
