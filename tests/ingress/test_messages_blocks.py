"""Content blocks: thinking, text and tool calls, whole and streamed, also when the reply is cut."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.ingress.anthropic_answers import MessageVoice
from actors.ingress.choices import Choice
from actors.ingress.cut_json import read_as_far_as_it_goes
from actors.messages import Finished, Outcome
from actors.replies.parts import CallArguments, CallBegins, Part, ReasoningPart, TextPart

CALL = [CallBegins(0, "call_1", "weather"), CallArguments(0, '{"city": '), CallArguments(0, '"Oslo"}')]
OTHER = [CallBegins(1, "call_2", "now")]
REPLY: list[Part] = [ReasoningPart("Look "), ReasoningPart("it up."), TextPart("One moment."), *CALL, *OTHER]
BLOCKS = [
    {"type": "thinking", "thinking": "Look it up.", "signature": ""},
    {"type": "text", "text": "One moment."},
    {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}},
    {"type": "tool_use", "id": "call_2", "name": "now", "input": {}},
]


def reply(parts: list[Part], outcome: Outcome = Outcome.STOP, matched: str | None = None) -> Choice:
    """A reply that has ended, read into these parts."""
    call = SimpleNamespace(submit=SimpleNamespace(input_ids=(1, 2, 3)), session=None)
    choice = Choice(0, cast(Any, SimpleNamespace(call=call, worker_id="w1")), cast(Any, None))
    choice.parts = parts
    choice.end = Finished(ingress="", key="", outcome=outcome, prompt_tokens=3, completion_tokens=9, matched=matched)
    return choice


def whole(choice: Choice) -> dict[str, Any]:
    message: dict[str, Any] = orjson.loads(MessageVoice("msg_1", "toy").whole([choice]))
    return message


def streamed(choice: Choice, cuts: list[int]) -> list[dict[str, Any]]:
    """The events, when the parts come in runs that end at `cuts`."""
    voice = MessageVoice("msg_1", "toy")
    data = voice.opens(choice)
    bounds = [0, *sorted(cuts), len(choice.parts)]
    for begin, end in pairwise(bounds):
        data += voice.says(choice, choice.parts[begin:end])
    data += voice.ends(choice) + voice.closes([choice])
    return [orjson.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: ")]


def gathered(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a stream. Each is opened, filled and closed before the next one."""
    blocks: list[dict[str, Any]] = []
    arguments = ""
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"])
            arguments = ""
        elif event["type"] == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            delta = event["delta"]
            if delta["type"] == "input_json_delta":
                arguments += delta["partial_json"]
            else:
                field = delta["type"].removesuffix("_delta")
                blocks[-1][field] += delta[field]
        elif event["type"] == "content_block_stop":
            assert event["index"] == len(blocks) - 1
            if arguments:
                blocks[-1]["input"] = read_as_far_as_it_goes(arguments)
    kinds = [event["type"] for event in events]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == len(blocks)
    return blocks


def test_a_reply_is_blocks_in_the_order_of_its_parts() -> None:
    message = whole(reply(REPLY))
    assert message["content"] == BLOCKS
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)


def test_text_after_a_call_is_a_block_of_its_own() -> None:
    parts: list[Part] = [TextPart("a"), *OTHER, TextPart("b"), TextPart("c")]
    assert [block.get("text") for block in whole(reply(parts))["content"]] == ["a", None, "bc"]


@given(st.lists(st.integers(0, len(REPLY)), max_size=6))
def test_a_stream_adds_up_to_the_whole_however_it_was_cut(cuts: list[int]) -> None:
    """I2."""
    events = streamed(reply(REPLY), cuts)
    assert gathered(events) == BLOCKS
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


@pytest.mark.parametrize("length", range(4, len(REPLY) + 1))
def test_a_reply_that_was_cut_says_so_and_keeps_what_is_complete(length: int) -> None:
    """N58, E7: `max_tokens`, not `tool_use`; streamed and not alike."""
    cut = reply(REPLY[:length], Outcome.LENGTH)
    message = whole(cut)
    assert message["stop_reason"] == "max_tokens"
    assert gathered(streamed(cut, [])) == message["content"]
    assert message["content"][2]["input"] in ({}, {"city": "Oslo"})


def test_a_stop_sequence_is_told_even_where_tools_are_called() -> None:
    """E7: it ended the reply, and clients that asked for it look for it."""
    assert whole(reply(REPLY, matched="###"))["stop_reason"] == "stop_sequence"
