"""Reasoning in POST /v1/chat/completions: told apart from the answer, whole and streamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actors.ingress.toy_text import toy_text
from configs import EngineConfig
from tests.ingress.asgi import Call, run
from tests.ingress.harness import edge
from tests.ingress.local import cluster
from tests.ingress.scripted import says

THINKING: dict[str, Any] = {"chat_template_kwargs": {"thinking": True}}
"""The toy's template ends with `<think>` then."""
NOW = {"type": "function", "function": {"name": "now"}}


def message_of(call: Call) -> dict[str, Any]:
    assert call.status == 200, call.body
    if "text/event-stream" not in call.headers["content-type"]:
        message = call.json()["choices"][0]["message"]
        return {"content": message["content"] or "", "reasoning": message.get("reasoning_content", "")}
    deltas = [choice["delta"] for event in call.events[:-1] for choice in event["choices"]]
    return {
        "content": "".join(delta.get("content") or "" for delta in deltas),
        "reasoning": "".join(delta.get("reasoning_content") or "" for delta in deltas),
    }


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "reply", "reasoning", "content"),
    [
        ({}, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ({}, "Yes.", "", "Yes."),
        (THINKING, "Hm.</think>Yes.", "Hm.", "Yes."),
        (THINKING, "Hm, that never ends", "Hm, that never ends", ""),
        ({"reasoning_effort": "none"}, "Yes </think>.", "", "Yes </think>."),
    ],
)
def test_reasoning_is_told_apart(
    stream: bool, fields: dict[str, Any], reply: str, reasoning: str, content: str
) -> None:
    """I2: in both ways alike; also where the prompt itself began it."""

    async def check() -> None:
        async with edge(says(reply), text=toy_text(reasoning="think")) as at:
            call = await at.client.chat(stream=stream, **fields).whole()
            assert message_of(call) == {"content": content, "reasoning": reasoning}
            assert bytes(at.worker.submits[0].input_ids).endswith(b"<think>") == (fields == THINKING)

    run(check())


def test_without_the_setting_it_is_text() -> None:
    async def check() -> None:
        async with edge(says("<think>Hm.</think>Yes.")) as at:
            call = await at.client.chat().whole()
            assert message_of(call) == {"content": "<think>Hm.</think>Yes.", "reasoning": ""}
            assert "reasoning_content" not in call.json()["choices"][0]["message"]

    run(check())


def test_plain_completions_are_not_taken_apart() -> None:
    """A prompt that is no chat is gone on with as it is."""

    async def check() -> None:
        async with edge(says("<think>Hm.</think>Yes."), text=toy_text(reasoning="think")) as at:
            call = await at.client.start("POST", "/v1/completions", {"prompt": "x"}).whole()
            assert call.json()["choices"][0]["text"] == "<think>Hm.</think>Yes."

    run(check())


def test_variables_reach_the_template_as_text() -> None:
    """chat_template_kwargs: whatever their type; ours win."""

    async def check() -> None:
        async with edge(says("x")) as at:
            for value, begun in ((True, True), ("yes", True), (0, False), (None, False), ([], False)):
                call = await at.client.chat(chat_template_kwargs={"thinking": value, "other": {"a": [1]}}).whole()
                assert call.status == 200
                assert bytes(at.worker.submits[-1].input_ids).endswith(b"<think>") == begun

    run(check())


@pytest.mark.parametrize("fields", [{}, THINKING])
def test_an_answer_that_has_a_form_comes_after_the_reasoning(tmp_path: Path, fields: dict[str, Any]) -> None:
    """response_format and tool_choice say what the answer is, not what was thought before."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": {**schema, "additionalProperties": False}}}
    bias = {"logit_bias": {str(ord(character)): 30 for character in "</think>"}}

    async def check() -> None:
        engine = EngineConfig(check_invariants=True, grammar_timeout_s=60.0)
        async with cluster(tmp_path, engine=engine, text=toy_text(reasoning="think")) as at:
            for seed in range(2):
                common: dict[str, Any] = {"seed": seed, "max_tokens": 80, **bias, **fields}
                call = await at.client.chat(response_format=wanted, **common).whole()
                reason = call.json()["choices"][0]["finish_reason"]
                if reason == "stop":
                    assert set(json.loads(message_of(call)["content"])) == {"ok"}
                elif fields == THINKING:
                    assert message_of(call)["content"] == ""
                call = await at.client.chat(tools=[NOW], tool_choice="required", **common).whole()
                message, reason = call.json()["choices"][0]["message"], call.json()["choices"][0]["finish_reason"]
                if reason == "tool_calls":
                    assert {one["function"]["name"] for one in message["tool_calls"]} == {"now"}
                else:
                    assert reason == "length"
                    assert message["reasoning_content"]
                assert message["content"] in (None, "")

    run(check(), 60.0)


def test_a_grammar_of_ones_own_does_not_fit_behind_reasoning_that_has_begun(tmp_path: Path) -> None:
    async def check() -> None:
        async with edge(says("x"), text=toy_text(reasoning="think")) as at:
            refused = await at.client.chat(guided_grammar='root ::= "x"', **THINKING).whole()
            assert (refused.status, refused.json()["error"]["param"]) == (400, "guided_grammar")
            assert (await at.client.chat(guided_grammar='root ::= "x"').whole()).status == 200

    run(check())


def test_what_was_thought_may_come_back() -> None:
    """Clients send the whole message again; a template that has no use for it leaves it out."""

    async def check() -> None:
        async with edge(says("x")) as at:
            messages = [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": None, "reasoning_content": "Hm."},
                {"role": "user", "content": "b"},
            ]
            assert (await at.client.chat(messages).whole()).status == 200
            assert bytes(at.worker.submits[0].input_ids) == b"user: a\nassistant: \nuser: b\nassistant: "

    run(check())


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("fields", "reply", "count"),
    [
        ({}, "<think>\nHm.\n</think>\n\nYes.", 3),
        ({}, "Yes.", 0),
        (THINKING, "Hm.</think>Yes.", 3),
        (THINKING, "Hm, that never ends", len("Hm, that never ends")),
    ],
)
def test_the_tokens_of_reasoning_are_counted(fields: dict[str, Any], reply: str, count: int, n: int) -> None:
    """E5: those whose text is told as reasoning; in a stream as in a whole answer, of all replies together."""

    async def check() -> None:
        async with edge(says(reply), text=toy_text(reasoning="think")) as at:
            whole = (await at.client.chat(n=n, **fields).whole()).json()["usage"]
            options = {"stream": True, "stream_options": {"include_usage": True}}
            stream = await at.client.chat(n=n, **options, **fields).whole()
        assert whole["completion_tokens_details"] == {"reasoning_tokens": n * count}
        assert whole["completion_tokens"] == n * len(reply)
        assert stream.events[-2]["usage"] == whole

    run(check())
