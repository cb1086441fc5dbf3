"""Replies that the client has begun: a last message of the assistant's in POST /v1/messages, `continue_final_message`
in /v1/chat/completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.ingress.toy_text import toy_text
from actors.runner.toy import toy_continuation
from tests.ingress.asgi import Client, run
from tests.ingress.harness import edge
from tests.ingress.local import cluster
from tests.ingress.scripted import says

BEGUN = [{"role": "user", "content": "what is it?"}, {"role": "assistant", "content": "It is ("}]
PROMPT = "user: what is it?\nassistant: It is ("
CONTINUED: dict[str, Any] = {"messages": BEGUN, "continue_final_message": True, "temperature": 0, "max_tokens": 8}


def expected(prompt: str, count: int = 8) -> str:
    return bytes(toy_continuation(list(prompt.encode()), count)).decode()


async def message(client: Client, **fields: Any) -> Any:
    body = {"messages": BEGUN, "max_tokens": 8, "temperature": 0, **fields}
    call = await client.post("/v1/messages", body)
    assert call.status == 200, call.body
    return call.json()


def test_a_message_goes_on_where_it_was_begun(tmp_path: Path) -> None:
    """I2, E5: the answer is what comes behind it, streamed and not; its tokens are the prompt's."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            whole = await message(at.client)
            body = {"messages": BEGUN, "max_tokens": 8, "temperature": 0, "stream": True}
            stream = await at.client.post("/v1/messages", body)
            counted = (await at.client.post("/v1/messages/count_tokens", {"messages": BEGUN})).json()
        assert whole["content"] == [{"type": "text", "text": expected(PROMPT)}]
        usage = whole["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted["input_tokens"] == len(PROMPT)
        deltas = [event["delta"]["text"] for event in stream.events if event["type"] == "content_block_delta"]
        assert "".join(deltas) == expected(PROMPT)

    run(check())


def test_in_a_session_the_two_are_one_reply(tmp_path: Path) -> None:
    """S1, S4, K1: the next turn goes on behind what was begun and what was generated."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            first = await message(at.client, session={"id": "s", "create": True})
            context = PROMPT + first["content"][0]["text"]
            more = [{"role": "user", "content": "and?"}, {"role": "assistant", "content": "Then"}]
            second = await message(at.client, messages=more, session={"id": "s"})
            prompt = f"{context}\nuser: and?\nassistant: Then"
            assert second["content"][0]["text"] == expected(prompt)
            assert second["usage"]["cache_read_input_tokens"] in (len(context), len(context) - 1)
            third = await message(at.client, messages=[{"role": "user", "content": "x"}], session={"id": "s"})
            last = f"{prompt}{second['content'][0]['text']}\nuser: x\nassistant: "
            assert third["content"][0]["text"] == expected(last)

    run(check())


@pytest.mark.parametrize("more", [{}, {"add_generation_prompt": False}])
def test_a_chat_goes_on_where_it_was_begun(tmp_path: Path, more: dict[str, Any]) -> None:
    """As vLLM and SGLang have it; without being asked for, a last message of the assistant's is followed by a reply."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            told = (await at.client.post("/v1/chat/completions", {**CONTINUED, **more})).json()
            plain = {**CONTINUED, "continue_final_message": False}
            anew = (await at.client.post("/v1/chat/completions", plain)).json()
            bare = {**plain, "add_generation_prompt": False}
            behind = (await at.client.post("/v1/chat/completions", bare)).json()
            tokens = [
                (await at.client.post("/tokenize", {"messages": BEGUN, **fields})).json()["tokens"]
                for fields in ({"continue_final_message": True}, {"add_generation_prompt": False})
            ]
        texts = [one["choices"][0]["message"]["content"] for one in (told, anew, behind)]
        assert texts == [expected(PROMPT), expected(f"{PROMPT}\nassistant: "), expected(f"{PROMPT}\n")]
        assert [bytes(ids).decode() for ids in tokens] == [PROMPT, f"{PROMPT}\n"]

    run(check())


def test_a_whole_conversation_in_a_session_may_end_within_a_reply(tmp_path: Path) -> None:
    """S1, K1: what went before it is gone on with; a reply that was begun is not met again by its text."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            session = {"id": "s", "create": True, "messages": "all"}
            asked = [{"role": "user", "content": "one"}]
            settings = {"temperature": 0, "max_tokens": 8, "session": session}
            first = (await at.client.post("/v1/chat/completions", {"messages": asked, **settings})).json()
            reply = first["choices"][0]["message"]["content"]
            more = [*asked, {"role": "assistant", "content": reply}, *BEGUN]
            fields = {"messages": more, "continue_final_message": True, **settings}
            second = (await at.client.post("/v1/chat/completions", fields)).json()
            text = second["choices"][0]["message"]["content"]
            assert text == expected(f"user: one\nassistant: {reply}\n{PROMPT}")
            cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert cached >= len(f"user: one\nassistant: {reply}") - 1
            whole = [*more[:-1], {"role": "assistant", "content": f"It is ({text}"}, {"role": "user", "content": "x"}]
            third = (await at.client.post("/v1/chat/completions", {"messages": whole, **settings})).json()
            prompt = f"user: one\nassistant: {reply}\n{PROMPT}{text}\nuser: x\nassistant: "
            assert third["choices"][0]["message"]["content"] == expected(prompt)

    run(check())


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("continue_final_message", {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": True}),
    ("continue_final_message", {"messages": BEGUN[:1], "continue_final_message": True}),
    ("continue_final_message", {"messages": BEGUN, "continue_final_message": 1}),
    ("add_generation_prompt", {"messages": BEGUN, "add_generation_prompt": "no"}),
    (
        "add_generation_prompt",
        {"messages": BEGUN, "add_generation_prompt": False, "session": {"id": "s", "create": True}},
    ),
]


@pytest.mark.parametrize(("param", "body"), WRONG)
def test_wrong_values_name_the_field(param: str, body: dict[str, Any]) -> None:
    """I1."""

    async def check() -> None:
        async with edge() as at:
            call = await at.client.post("/v1/chat/completions", body)
        assert (call.status, call.json()["error"]["param"]) == (400, param)

    run(check())


@pytest.mark.parametrize("end", [" ", "\n", "\u2003"])
def test_white_space_at_the_end_is_refused_as_anthropic_does(end: str) -> None:
    async def check() -> None:
        async with edge() as at:
            begun = [BEGUN[0], {"role": "assistant", "content": f"It is{end}"}]
            call = await at.client.post("/v1/messages", {"messages": begun, "max_tokens": 5})
        assert (call.status, call.json()["error"]["type"]) == (400, "invalid_request_error")
        assert "white space" in call.json()["error"]["message"]

    run(check())


@pytest.mark.parametrize(
    ("begun", "reasoning", "content"),
    [("<think>I", " see</think>Yes", "Yes"), ("<think>I</think>", "see", "see"), ("No", "see", "see")],
)
def test_reasoning_that_was_begun_goes_on(begun: str, reasoning: str, content: str) -> None:
    """I2."""

    async def check() -> None:
        async with edge(says(reasoning), text=toy_text(reasoning="think")) as at:
            fields = {**CONTINUED, "messages": [BEGUN[0], {"role": "assistant", "content": begun}]}
            told = (await at.client.post("/v1/chat/completions", fields)).json()["choices"][0]["message"]
        assert told["content"] == content
        assert told.get("reasoning_content", "") == ("see" if content == "Yes" else "")

    run(check())
