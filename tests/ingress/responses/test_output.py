"""Parts of replies as output items, events and records: one account of them, however they are told."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.ingress.errors import ApiError
from actors.ingress.responses.output import output_of
from actors.ingress.responses.told import Told
from actors.ingress.responses.voice import Teller, told_again
from actors.messages import Finished, Outcome, Reason
from actors.replies.parts import CallArguments, CallBegins, Part, ReasoningPart, TextPart

REPLY: list[Part] = [
    ReasoningPart("hm"),
    TextPart("a ✓"),
    TextPart("b"),
    CallBegins(0, "call_1", "look"),
    CallArguments(0, '{"a":'),
    CallArguments(0, "1}"),
    CallBegins(1, "call_2", "wait"),
    TextPart("done"),
]

parts = st.lists(
    st.one_of(
        st.builds(TextPart, st.text(max_size=3)),
        st.builds(ReasoningPart, st.text(max_size=3)),
        st.tuples(st.integers(0, 9), st.lists(st.text(max_size=3), max_size=3)),
    ),
    max_size=6,
)


def flat(drawn: list[Any]) -> list[Part]:
    found: list[Part] = []
    for number, one in enumerate(drawn):
        if isinstance(one, tuple):
            found.append(CallBegins(number, f"call_{number}", f"f{one[0]}"))
            found += [CallArguments(number, text) for text in one[1]]
        else:
            found.append(one)
    return found


def told(reply: list[Part], outcome: Outcome | None = Outcome.STOP, *, background: bool = False) -> Told:
    end = None
    if outcome is not None:
        end = Finished(ingress="", key="", outcome=outcome, prompt_tokens=5, completion_tokens=3, cached_tokens=2)
    return Told(
        id="resp_x",
        own="x",
        model="toy",
        created_at=7,
        echo={"background": background, "metadata": {}},
        items=[],
        parts=reply,
        end=end,
        completed_at=9,
    )


def events(data: bytes) -> list[dict[str, Any]]:
    found = []
    for block in data.decode().split("\n\n")[:-1]:
        name, line = block.split("\n")
        event = json.loads(line.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def test_a_reply_becomes_items_of_its_kinds() -> None:
    items = told(REPLY).output()
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call", "message"]
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert items[1]["content"][0]["text"] == "a ✓b"
    assert (items[2]["call_id"], items[2]["name"], items[2]["arguments"]) == ("call_1", "look", '{"a":1}')
    assert (items[3]["name"], items[3]["arguments"]) == ("wait", "")
    assert {item["status"] for item in items} == {"completed"}
    assert len({item["id"] for item in items}) == 5


def test_a_reply_without_a_word_is_an_empty_message() -> None:
    (item,) = told([]).output()
    assert (item["type"], item["content"][0]["text"], item["status"]) == ("message", "", "completed")


def test_a_reply_that_was_cut_says_so() -> None:
    """E5: of the last item only: the others were whole."""
    items = told(REPLY, Outcome.LENGTH).output()
    assert [item["status"] for item in items] == ["completed"] * 4 + ["incomplete"]
    assert told(REPLY, Outcome.LENGTH).object()["incomplete_details"] == {"reason": "max_output_tokens"}
    assert told(REPLY, Outcome.ABORT).object()["status"] == "cancelled"


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(parts)
def test_the_stream_adds_up_to_the_object(drawn: list[Any]) -> None:
    """I2: deltas make what `done` says, and that is what the object has."""
    whole = told(flat(drawn))
    told_events = events(told_again(whole))
    assert [event["sequence_number"] for event in told_events] == list(range(len(told_events)))
    done = [event["item"] for event in told_events if event["type"] == "response.output_item.done"]
    assert done == told_events[-1]["response"]["output"] == whole.output()
    grown: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for event in told_events:
        if event["type"].endswith(".delta"):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
        elif event["type"].endswith((".output_text.done", ".reasoning_text.done", "arguments.done")):
            text = event.get("text", event.get("arguments"))
            assert text == texts.get(event["item_id"], "")
            grown[event["item_id"]] += 1
    assert grown == Counter({item["id"]: 1 for item in done})


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(parts, st.integers(-1, 30), st.sampled_from([*Outcome, None]), st.booleans())
def test_what_was_stored_is_told_as_it_was(drawn: list[Any], after: int, outcome: Any, background: bool) -> None:
    """A stream is told again event by event, under the same numbers, from any number on."""
    first = told(flat(drawn), outcome, background=background)
    if outcome is None:
        first.fail(ApiError(Reason.RUNNING_TIMEOUT, "too long"), "req-1")
    teller = Teller(first)
    live = teller.opens() + b"".join(teller.says([part]) for part in first.parts)
    live += teller.fails() if outcome is None else teller.ends()
    again = Told.unpacked(first.packed())
    assert again == replace(first, end=again.end)
    assert again.object() == first.object()
    assert told_again(again) == live
    assert events(told_again(again, after)) == [event for event in events(live) if event["sequence_number"] > after]


def test_where_there_is_little_room_less_is_stored() -> None:
    """First the input is left out, then how the output was cut: what it says stays."""
    whole = told([*REPLY, *[TextPart(letter) for letter in "word"]])
    whole.items = [{"id": "msg_1"}]
    without_input, joined = (Told.unpacked(less.packed()) for less in whole.smaller())
    assert (without_input.items, without_input.input_kept) == ([], False)
    assert without_input.parts == whole.parts
    assert len(joined.packed()) < len(without_input.packed()) < len(whole.packed())
    assert joined.object() == whole.object()
    assert joined.parts[-1] == TextPart("doneword")


def test_a_failure_is_one_error_then_the_failed_response() -> None:
    """E3, E4: the one error body; what was said before it stays."""
    failed = told(REPLY, None)
    failed.fail(ApiError(Reason.RUNNING_TIMEOUT, "too long"), "req-1")
    *_, error, last = events(told_again(failed))
    assert (error["type"], error["code"], error["message"]) == ("error", "running_timeout", "too long")
    assert error["error"]["request_id"] == "req-1"
    assert last["type"] == "response.failed"
    assert (last["response"]["status"], last["response"]["error"]["code"]) == ("failed", "running_timeout")
    assert last["response"]["output"][-1]["status"] == "incomplete"
    assert [event["type"] for event in events(told_again(failed))].count("error") == 1


def test_a_response_that_grows_shows_what_there_is() -> None:
    items = output_of("x", REPLY[:2]).items()
    assert [item["status"] for item in items] == ["completed", "in_progress"]
    growing = told(REPLY[:2], None)
    assert (growing.status, growing.object()["usage"]) == ("in_progress", None)
    assert told([], None, background=True).status == "queued"
