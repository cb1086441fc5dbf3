"""/tokenize and /detokenize: the ids that a prompt has here, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.scripted import says

CHAT = [{"role": "user", "content": "héllo 🙂"}]


def test_a_prompt_and_its_tokens_are_told_into_each_other() -> None:
    async def check() -> None:
        async with edge(max_context=500) as at:
            made = (await at.client.post("/tokenize", {"model": "toy", "prompt": "héllo 🙂"})).json()
            back = (await at.client.post("/detokenize", {"model": "toy", "tokens": made["tokens"]})).json()
        ids = list("héllo 🙂".encode())
        assert made == {"tokens": ids, "count": len(ids), "max_model_len": 500, "token_strs": None}
        assert back == {"prompt": "héllo 🙂"}

    run(check())


def test_messages_are_told_as_a_chat_would_send_them() -> None:
    """The same ids, by the same template."""

    async def check() -> None:
        async with edge(says("x")) as at:
            made = (await at.client.post("/tokenize", {"messages": CHAT, "chat_template_kwargs": {"a": 1}})).json()
            await at.client.chat(CHAT).whole()
            assert tuple(made["tokens"]) == at.worker.submits[0].input_ids
            back = (await at.client.post("/detokenize", {"tokens": made["tokens"]})).json()
        assert back == {"prompt": "user: héllo 🙂\nassistant: "}

    run(check())


def test_each_token_can_be_shown() -> None:
    """I2: pieces of a character by themselves are U+FFFD, and the whole is whole."""

    async def check() -> None:
        async with edge() as at:
            made = (await at.client.post("/tokenize", {"prompt": "aé", "return_token_strs": True})).json()
            assert made["token_strs"] == ["a", "�", "�"]
            half = (await at.client.post("/detokenize", {"tokens": made["tokens"][:2]})).json()
            assert half == {"prompt": "a�"}
            assert (await at.client.post("/detokenize", {"tokens": []})).json() == {"prompt": ""}

    run(check())


def test_what_is_put_in_front_of_a_prompt_can_be_left_out() -> None:
    """For models that want a BOS."""

    async def check() -> None:
        async with edge() as at:
            at.ingress.text = replace(at.ingress.text, encode=lambda plain: [257, *plain.encode()])
            for options, ids in (({}, [257, 97]), ({"add_special_tokens": False}, [97])):
                made = await at.client.post("/tokenize", {"prompt": "a", **options})
                assert made.json()["tokens"] == ids

    run(check())


WRONG: list[tuple[str, str | None, Any]] = [
    ("/tokenize", "prompt", {}),
    ("/tokenize", "prompt", {"prompt": 5}),
    ("/tokenize", "prompt", {"prompt": ["a"]}),
    ("/tokenize", "prompt", {"prompt": "a\x00"}),
    ("/tokenize", "messages", {"prompt": "a", "messages": CHAT}),
    ("/tokenize", "messages", {"messages": "x"}),
    ("/tokenize", "messages[0].role", {"messages": [{"role": "alien", "content": "x"}]}),
    ("/tokenize", "messages", {"messages": [*CHAT, {"role": "system", "content": "x"}]}),
    ("/tokenize", "add_generation_prompt", {"messages": CHAT, "add_generation_prompt": 0}),
    ("/tokenize", "continue_final_message", {"messages": CHAT, "continue_final_message": True}),
    ("/tokenize", "chat_template", {"messages": CHAT, "chat_template": "{{ 1 }}"}),
    ("/tokenize", "chat_template_kwargs", {"messages": CHAT, "chat_template_kwargs": []}),
    ("/tokenize", "add_special_tokens", {"prompt": "a", "add_special_tokens": "no"}),
    ("/tokenize", "return_token_strs", {"prompt": "a", "return_token_strs": 1}),
    ("/tokenize", "prompt", {"prompt": "a" * 9000}),
    ("/tokenize", None, b"[]"),
    ("/detokenize", "tokens", {}),
    ("/detokenize", "tokens", {"tokens": "x"}),
    ("/detokenize", "tokens[1]", {"tokens": [1, -1]}),
    ("/detokenize", "tokens[0]", {"tokens": [10**30]}),
    ("/detokenize", "tokens[0]", {"tokens": [True]}),
    ("/detokenize", "tokens", {"tokens": [1] * 9000}),
    ("/detokenize", "tokens[0]", {"tokens": [1.0]}),
]


@pytest.mark.parametrize(("path", "param", "body"), WRONG)
def test_a_wrong_value_is_400_naming_its_field(path: str, param: str | None, body: Any) -> None:
    """I1."""

    async def check() -> None:
        async with edge(max_context=8192) as at:
            call = await at.client.post(path, body)
        assert call.status == 400
        assert call.json()["error"]["param"] == param

    run(check())


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_another_model_is_not_found(path: str) -> None:
    async def check() -> None:
        async with edge() as at:
            call = await at.client.post(path, {"model": "other", "prompt": "a", "tokens": [1]})
        assert (call.status, call.json()["error"]["code"]) == (404, "model_not_found")

    run(check())
