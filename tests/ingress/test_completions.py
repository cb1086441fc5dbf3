"""POST /v1/completions: prompts as text, ids and lists of both; echo; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.runner.toy import toy_continuation
from tests.ingress.asgi import Call, run
from tests.ingress.harness import Edge, edge
from tests.ingress.local import cluster
from tests.ingress.scripted import says

PATH = "/v1/completions"


async def complete(at: Edge | Any, prompt: object, **fields: Any) -> Call:
    call: Call = await at.client.post(PATH, {"prompt": prompt, **fields})
    return call


def streamed(call: Call) -> str:
    return "".join(event["choices"][0]["text"] for event in call.events[:-1] if event["choices"])


def test_the_answer_has_the_shape_of_the_api() -> None:
    async def check() -> None:
        async with edge(says("four")) as at:
            call = await complete(at, "hi")
        body = call.json()
        assert body["object"] == "text_completion"
        assert body["id"].startswith("cmpl-")
        assert body["choices"] == [{"index": 0, "text": "four", "logprobs": None, "finish_reason": "stop"}]
        assert body["usage"]["prompt_tokens"] == 2
        assert body["usage"]["total_tokens"] == 6
        assert at.worker.submits[0].input_ids == tuple(b"hi")

    run(check())


def test_no_limit_means_sixteen_tokens() -> None:
    """As in the OpenAI API, for this route only."""

    async def check() -> None:
        async with edge(says("x")) as at:
            await complete(at, "hi")
            await complete(at, "hi", max_tokens=100)
        assert [submit.sampling.max_tokens for submit in at.worker.submits] == [16, 100]

    run(check())


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("ab", [b"ab"]),
        (["ab", "c"], [b"ab", b"c"]),
        ([97, 98], [b"ab"]),
        ([[97, 98], [99]], [b"ab", b"c"]),
        (["ab", [99]], [b"ab", b"c"]),
    ],
)
def test_prompts_are_text_or_ids_or_lists_of_them(prompt: object, ids: list[bytes]) -> None:
    async def check() -> None:
        async with edge(says("x")) as at:
            call = await complete(at, prompt, rid="r")
        assert [submit.input_ids for submit in at.worker.submits] == [tuple(one) for one in ids]
        body = call.json()
        assert [choice["index"] for choice in body["choices"]] == list(range(len(ids)))
        assert body["usage"]["prompt_tokens"] == sum(map(len, ids))

    run(check())


def test_every_prompt_has_its_choices_side_by_side() -> None:
    """E5: a prompt counts once, however many replies it has."""

    async def check() -> None:
        async with edge(says("x")) as at:
            call = await complete(at, ["ab", "c"], n=2, echo=True)
        body = call.json()
        assert [choice["text"] for choice in body["choices"]] == ["abx", "abx", "cx", "cx"]
        assert body["usage"]["prompt_tokens"] == 3
        assert body["usage"]["completion_tokens"] == 4

    run(check())


@pytest.mark.parametrize("echo", [False, True])
def test_a_stream_says_the_same_as_the_whole_answer(tmp_path: Path, echo: bool) -> None:
    """I2, E5."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            fields: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "echo": echo}
            whole = (await complete(at, "once upon", **fields)).json()
            stream = await complete(at, "once upon", stream=True, stream_options={"include_usage": True}, **fields)
            by_ids = (await complete(at, list(b"once upon"), **fields)).json()
        expected = bytes(toy_continuation(list(b"once upon"), 12)).decode("utf-8", "replace")
        assert whole["choices"][0]["text"] == ("once upon" if echo else "") + expected
        assert streamed(stream) == by_ids["choices"][0]["text"] == whole["choices"][0]["text"]
        assert stream.events[-2]["usage"]["completion_tokens"] == 12
        assert stream.events[-3]["choices"][0]["finish_reason"] == "length"

    run(check())


def test_a_session_goes_on_with_plain_prompts(tmp_path: Path) -> None:
    """S1, K1: what is sent is appended to the history, ids as they are."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            fields: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
            first = (await complete(at, "one", session={"id": "s", "create": True}, **fields)).json()
            second = (await complete(at, "two", session={"id": "s"}, **fields)).json()
        history = [*b"one", *toy_continuation(list(b"one"), 8)]
        assert second["usage"]["prompt_tokens"] == len(history) + 3
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(history) - 1
        expected = bytes(toy_continuation([*history, *b"two"], 8)).decode("utf-8", "replace")
        assert second["choices"][0]["text"] == expected
        assert second["session"]["turn"] == first["session"]["turn"] + 1

    run(check())


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": 3}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": {"a": 1}}),
    ("prompt[1]", {"prompt": [65, "a"]}),
    ("prompt[1]", {"prompt": [65, -1]}),
    ("prompt[1]", {"prompt": [65, 2**40]}),
    ("prompt[1]", {"prompt": [65, True]}),
    ("prompt[0]", {"prompt": [True]}),
    ("prompt[0]", {"prompt": [None]}),
    ("prompt[1]", {"prompt": ["a", []]}),
    ("prompt[1][0]", {"prompt": ["a", ["b"]]}),
    ("prompt[1][0]", {"prompt": [[1], [1.5]]}),
    ("prompt", {"prompt": ["a"] * 129}),
    ("n", {"prompt": ["a", "b"], "n": 65}),
    ("prompt", {"prompt": "a\x00"}),
    ("echo", {"echo": 1}),
    ("suffix", {"suffix": "end"}),
    ("logprobs", {"logprobs": True}),
    ("logprobs", {"logprobs": 21}),
    ("logprobs", {"logprobs": 2, "echo": True, "session": {"id": "s", "create": True}}),
    ("best_of", {"best_of": 3, "n": 2}),
    ("best_of", {"best_of": "x"}),
    ("n", {"session": {"id": "s", "create": True}, "prompt": ["a", "b"]}),
]


@pytest.mark.parametrize(("param", "fields"), WRONG)
def test_a_wrong_value_is_400_naming_the_field(param: str, fields: dict[str, Any]) -> None:
    """I1."""

    async def check() -> None:
        async with edge(says("x")) as at:
            call = await at.client.post(PATH, {"prompt": "a", **fields})
            assert call.status == 400, call.body
            assert call.json()["error"]["param"] == param
            assert not at.worker.submits

    run(check())


def test_control_tokens_in_a_prompt_are_text_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    """I1, S4: an empty prompt has nothing to go on with."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            call = await complete(at, "")
        assert call.status == 400
        assert call.json()["error"]["reason"] in ("invalid", "too_large")

    run(check())


def test_messages_belong_elsewhere() -> None:
    """A clear word to who meant the other route."""

    async def check() -> None:
        async with edge(says("x")) as at:
            call = await at.client.post(PATH, {"messages": [{"role": "user", "content": "hi"}]})
        assert call.status == 400
        assert "/v1/chat/completions" in call.json()["error"]["message"]

    run(check())
