"""The real `openai` client against the application under a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import uvicorn

from actors.ingress.toy_text import TOY_VOCAB_BYTES, toy_text
from actors.runner.script import ScriptRunner
from actors.runner.toy import toy_continuation
from tests.ingress.asgi import eventually
from tests.ingress.local import Cluster, cluster
from tests.ingress.web import serving


@dataclass
class Server:
    """`on_loop` runs a coroutine function of the cluster where the server runs."""

    url: str
    at: Cluster
    loop: asyncio.AbstractEventLoop

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", **options)

    def wait_until(self, holds: Any) -> None:
        asyncio.run_coroutine_threadsafe(eventually(holds), self.loop).result(60)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    ready: list[Server] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with cluster(tmp_path, step_s=0.002, workers=2) as at:
            listener = socket.create_server(("127.0.0.1", 0))
            web = uvicorn.Server(uvicorn.Config(at.app, log_level="warning", lifespan="on"))
            task = asyncio.create_task(web.serve(sockets=[listener]))
            await eventually(lambda: web.started)
            ready.append(Server(f"http://127.0.0.1:{listener.getsockname()[1]}", at, asyncio.get_running_loop()))
            started.set()
            await asyncio.to_thread(stop.wait)
            web.should_exit = True
            await task
            listener.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(60)
    yield ready[0]
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


def messages(text: str) -> Any:
    return [{"role": "user", "content": text}]


def expected(prompt: str, count: int) -> str:
    return bytes(toy_continuation(list(prompt.encode()), count)).decode()


def test_answers_streams_and_usage(server: Server) -> None:
    client = server.client()
    want = expected("user: hi\nassistant: ", 12)
    answer = client.chat.completions.create(model="toy", messages=messages("hi"), max_tokens=12, temperature=0)
    assert answer.choices[0].message.content == want
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    stream = client.chat.completions.create(
        model="toy",
        messages=messages("hi"),
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == want
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens_details is not None
    assert [model.id for model in client.models.list()] == ["toy"]


def test_a_session_goes_on_with_what_is_new_only(server: Server) -> None:
    """P5, S14, K1."""
    client = server.client()
    one = client.chat.completions.create(
        model="toy",
        messages=messages("one"),
        max_tokens=8,
        temperature=0,
        extra_body={"session": {"id": "日本 chat/1", "create": True}},
    )
    two = client.chat.completions.create(
        model="toy",
        messages=messages("two"),
        max_tokens=8,
        temperature=0,
        extra_body={"session": {"id": "日本 chat/1"}},
    )
    context = f"user: one\nassistant: {one.choices[0].message.content}"
    assert two.choices[0].message.content == expected(f"{context}\nuser: two\nassistant: ", 8)
    assert two.usage is not None
    assert two.usage.prompt_tokens_details is not None
    assert two.usage.prompt_tokens_details.cached_tokens in (len(context), len(context) - 1)


def test_errors_are_the_clients_own_kinds(server: Server) -> None:
    """E3, E4."""
    client = server.client(max_retries=0)

    def ask(**fields: Any) -> Any:
        return client.chat.completions.create(**{"model": "toy", "messages": messages("x"), **fields})

    with pytest.raises(openai.NotFoundError) as unknown:
        ask(model="gpt-9")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        ask(messages=[{"role": "alien", "content": "x"}])
    assert wrong.value.param == "messages[0].role"
    with pytest.raises(openai.NotFoundError):
        ask(extra_body={"session": {"id": "nobody"}}, stream=True)
    with pytest.raises(openai.APIError) as late:
        list(ask(stream=True, max_tokens=5000, extra_body={"running_timeout_s": 0.2}))
    body = late.value.body
    assert isinstance(body, dict)
    assert body["reason"] == "running_timeout"


def test_response_format(server: Server) -> None:
    """G01: structured output as the client's own types have it; an unusable schema is its BadRequestError."""
    client = server.client(max_retries=0)
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    }

    def ask(schema: dict[str, Any]) -> str:
        answer = client.chat.completions.create(
            model="toy",
            messages=messages("x"),
            max_tokens=60,
            seed=3,
            response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}},
        )
        assert answer.choices[0].finish_reason == "stop"
        return answer.choices[0].message.content or ""

    value = json.loads(ask(schema))
    assert value["colour"] in ("red", "blue")
    assert value["count"] in range(10)
    with pytest.raises(openai.BadRequestError) as wrong:
        ask({"type": "nonsense"})
    assert (wrong.value.code, wrong.value.param) == ("grammar_invalid", "response_format")


def test_closing_a_stream_gives_the_pages_back(server: Server) -> None:
    """A6: field case N01: over a real socket, streamed and unary."""
    client = server.client(max_retries=0)
    stream = client.chat.completions.create(
        model="toy", messages=messages("long"), max_tokens=8000, temperature=0, stream=True
    )
    next(iter(stream))
    stream.close()
    server.wait_until(lambda: all(server.at.pages(w)["request_owned"] == 0 for w in ("w1", "w2")))
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(
            model="toy", messages=messages("long"), max_tokens=8000, temperature=0, timeout=0.3
        )
    server.wait_until(lambda: all(server.at.pages(w)["request_owned"] == 0 for w in ("w1", "w2")))
    server.wait_until(lambda: server.at.ingress.metrics.open_requests == 0)


def test_many_at_once_do_not_mix(server: Server) -> None:
    async def ask_all() -> list[str | None]:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none")
        calls = [
            client.chat.completions.create(model="toy", messages=messages(f"q{n}"), max_tokens=16, temperature=0)
            for n in range(24)
        ]
        return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]

    assert asyncio.run(ask_all()) == [expected(f"user: q{n}\nassistant: ", 16) for n in range(24)]


def test_reasoning_and_text_and_calls_of_one_reply(tmp_path: Path) -> None:
    """`reasoning_content` beside `content`, whole and streamed; parallel calls in their order."""
    call = '<tool_call>{"name": "Weather", "arguments": {"unit": "celsius", "days": %d}}</tool_call>'
    reply = f"<think>\nTwo days…\n</think>\n\nI look.\n{call % 1}\n{call % 2}"

    schema = {"type": "object", "properties": {"unit": {"type": "string"}, "days": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "Weather", "parameters": schema}}

    def runner() -> ScriptRunner:
        return ScriptRunner(list(reply.encode()), vocab_bytes=TOY_VOCAB_BYTES, eos_id=257)

    with serving(tmp_path, runner=runner, text=toy_text(reasoning="think")) as web:
        client = openai.OpenAI(base_url=f"{web.url}/v1", api_key="none", max_retries=0)
        common: dict[str, Any] = {"model": "toy", "messages": messages("hi"), "max_tokens": 400, "tools": [tool]}
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
