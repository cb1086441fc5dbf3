"""Log probabilities and counts of reasoning in the Responses API: unary, streamed, and asked for again."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from actors.ingress.responses.told import Told
from actors.ingress.responses.voice import Teller
from actors.ingress.toy_text import toy_text
from actors.messages import Event, Submit
from actors.replies.parts import TextPart
from actors.runner.toy import toy_logprobs
from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.responses.calls import Asker, text_of
from tests.ingress.responses.test_responses import another_replica, asking
from tests.ingress.scripted import stopped, tokens

ASKED: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
STREAMED: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def logprobs_of(response: Any) -> list[Any]:
    """Of all texts of its messages."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return [one for message in messages for part in message["content"] for one in part["logprobs"]]


def test_each_token_of_the_text_has_its_own(tmp_path: Path) -> None:
    """I2: as OpenAI's own types read them, in every event of a stream, and whenever it is asked for."""

    async def check() -> None:
        async with asking(tmp_path) as (at, api):
            made = await api.ask("hi", **ASKED)
            call = await api.start("hi", stream=True, **ASKED).whole()
            plain = await api.ask("hi")
            bare = await api.ask("hi", include=ASKED["include"])
            ignored = await api.ask("hi", top_logprobs=2)
            found = (await another_replica(at).get(made["id"])).json()
            again = await api.get(made["id"], "?stream=true")
            mine = await api.get(call.events[0]["response"]["id"], "?stream=true")
        told, text = logprobs_of(made), text_of(made)
        assert (len(told), made["top_logprobs"]) == (8, 2)
        own, top = toy_logprobs(ord(text[0]), 2)
        assert "".join(one["token"] for one in told) == text
        assert (told[0]["logprob"], told[0]["bytes"]) == (own, [ord(text[0])])
        assert [one["logprob"] for one in told[0]["top_logprobs"]] == [value for _, value in top]
        assert [one["top_logprobs"] for one in logprobs_of(bare)] == [[]] * 8
        assert logprobs_of(plain) == logprobs_of(ignored) == []
        assert found == made
        part = Response.model_validate(made).output[0].content[0]  # type: ignore[union-attr]
        assert [one.token for one in part.logprobs] == list(text)  # type: ignore[union-attr]
        for stream in (call, again):
            deltas = [
                one for event in stream.events if event["type"].endswith("text.delta") for one in event["logprobs"]
            ]
            (done,) = (event for event in stream.events if event["type"] == "response.output_text.done")
            assert deltas == done["logprobs"] == logprobs_of(stream.events[-1]["response"]) == told
            for event in stream.events:
                STREAMED.validate_python(event)
        assert mine.events == call.events

    run(check())


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_has_none_and_is_counted(stream: bool) -> None:
    """E5: the tokens of the text, and no tags; `reasoning_tokens` are those that are told as reasoning."""
    reply = "<think>\nHm.\n</think>\n\nYes."

    def script(submit: Submit) -> list[Event]:
        said = replace(tokens(submit, reply), logprobs=((-1.0, ()),) * len(reply))
        return [said, stopped(submit, len(reply))]

    async def check() -> None:
        async with edge(script, text=toy_text(reasoning="think")) as at:
            made = await Asker(at.client).ask("hi", store=False, stream=stream, include=ASKED["include"])
        assert "".join(one["token"] for one in logprobs_of(made)) == text_of(made) == "Yes."
        details = {"reasoning_tokens": 3}
        assert (made["usage"]["output_tokens"], made["usage"]["output_tokens_details"]) == (len(reply), details)

    run(check())


def test_what_is_counted_is_kept(tmp_path: Path) -> None:
    """E5: with the record, for whoever asks later."""

    async def check() -> None:
        async with asking(tmp_path, text=toy_text(reasoning="think")) as (at, api):
            variables = {"chat_template_kwargs": {"thinking": True}}
            made = await api.ask("hi", **variables)
            found = (await another_replica(at).get(made["id"])).json()
        assert made["status"] == "incomplete"
        assert made["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
        assert found == made

    run(check())


def test_where_there_is_little_room_they_are_not_kept() -> None:
    """S10: the record has the text all the same."""
    told = Told(
        id="resp_x",
        own="x",
        model="toy",
        created_at=1,
        echo={},
        items=[],
        parts=[TextPart("a", ({"token": "a"},)), TextPart("b", ({"token": "b"},))],
        reasoning_tokens=3,
    )
    assert Told.unpacked(told.packed()) == told
    *_, least = told.smaller()
    assert least.parts == [TextPart("ab")]
    assert least.reasoning_tokens == 3


@pytest.mark.parametrize(("tokens", "beside"), [(240, True), (8, False)])
def test_the_end_of_a_long_stream_is_not_written_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int, beside: bool
) -> None:
    """I1: its last events repeat all log probabilities."""
    on_loop: list[bool] = []
    ends = Teller.ends

    def noted(teller: Teller) -> bytes:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return ends(teller)

    monkeypatch.setattr(Teller, "ends", noted)

    async def check() -> None:
        async with asking(tmp_path) as (_, api):
            told = await api.ask("hi", stream=True, max_output_tokens=tokens, **{**ASKED, "top_logprobs": 20})
            assert len(logprobs_of(told)) == tokens

    run(check())
    assert on_loop == [not beside]
