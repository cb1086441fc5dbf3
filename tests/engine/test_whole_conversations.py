"""Clients that always send everything: what the session has is gone on with, what differs is a branch (S1, S3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from actors.messages import Notation, Outcome, Reason, SamplingParams, SessionMode
from actors.replies.alike import canonical_call
from actors.replies.formats import ToolFormat
from actors.runner.script import ScriptRunner
from tests.engine.driver import Driver, Told, expected

HELLO, MORE = list(b"hello."), list(b"and more.")
VOCAB = [bytes([i]) for i in range(256)] + [b""]
EOS = 256


@pytest.fixture(params=[SessionMode.TREE, SessionMode.STREAMING], ids=["tree", "streaming"])
def driver(request: pytest.FixtureRequest) -> Driver:
    found = Driver()
    found.open(mode=request.param)
    return found


def tree() -> Driver:
    found = Driver()
    found.open(mode=SessionMode.TREE)
    return found


def turn(
    driver: Driver, rid: str, new: list[int], root: list[int], *, stem: str = "", reply: str = "", **fields: Any
) -> Told:
    """A turn that brings a whole conversation. `new`: what comes after its last reply."""
    told = driver.turn(
        rid, new, 8, from_head=False, root_ids=tuple(root), whole=True, stem=stem, reply=reply, rid=rid, **fields
    )
    driver.run()
    return told


def text(ids: list[int]) -> str:
    return bytes(ids).decode()


def test_it_goes_on_from_the_reply_that_it_contains(driver: Driver) -> None:
    """S1, K1: by the tokens that were generated, whatever the client's text of them would be as tokens."""
    first = turn(driver, "a~1", HELLO, HELLO)
    assert first.ids == expected(HELLO, 8)
    other_tokens = [*HELLO, 1, 2, 3, *MORE]
    second = turn(driver, "b~1", MORE, other_tokens, stem="a", reply=text(first.ids))
    history = [*HELLO, *first.ids]
    assert second.ids == expected([*history, *MORE], 8)
    assert second.end.prompt_tokens == len(history) + len(MORE)
    assert second.end.cached_tokens >= len(history) - 1
    third = turn(driver, "c~1", MORE, [*other_tokens, 9, *MORE], stem="b", reply=f"  {text(second.ids)}\n")
    assert third.ids == expected([*history, *MORE, *second.ids, *MORE], 8)
    assert driver.info().turns == 3


@pytest.mark.parametrize(("stem", "reply"), [("a", "edited"), ("other", None), ("", "")])
def test_what_differs_is_a_branch_of_its_own(stem: str, reply: str | None) -> None:
    """S3, T6: an edited message, an edited reply, or a new beginning: what the client sent is the whole context."""
    driver = tree()
    first = turn(driver, "a~1", HELLO, HELLO)
    root = [*HELLO, 7, 7, *MORE]
    second = turn(driver, "b~1", MORE, root, stem=stem, reply=text(first.ids) if reply is None else reply)
    assert second.ids == expected(root, 8)
    assert driver.info().turns == 2
    again = turn(driver, "c~1", MORE, [1], stem="a", reply=text(first.ids))
    assert again.ids == expected([*HELLO, *first.ids, *MORE], 8), "the first branch is still there"


def test_a_streaming_session_refuses_what_differs() -> None:
    """S3, S7: it has no branches, and nothing has changed."""
    driver = Driver()
    driver.open()
    first = turn(driver, "a~1", HELLO, HELLO)
    refused = turn(driver, "b~1", MORE, [*HELLO, 7, *MORE], stem="a", reply="edited")
    assert (refused.end.reason, refused.end.param) == (Reason.INVALID, "messages")
    second = turn(driver, "c~1", MORE, [1], stem="a", reply=text(first.ids))
    assert second.end.outcome is Outcome.LENGTH


def test_of_two_replies_to_the_same_messages_the_right_one_is_gone_on_with() -> None:
    """Asked again without a name of its own, the same conversation is another turn beside the first."""
    driver = tree()
    sampled = SamplingParams(max_tokens=8, temperature=1, seed=1)
    first = driver.turn("a~1", HELLO, from_head=False, root_ids=tuple(HELLO), whole=True, rid="a~1", sampling=sampled)
    driver.run()
    second = turn(driver, "a~2", HELLO, HELLO)
    assert first.ids != second.ids
    for reply in (first, second):
        on = turn(driver, f"b~{text(reply.ids)}", MORE, [1], stem="a", reply=text(reply.ids))
        assert on.ids == expected([*HELLO, *reply.ids, *MORE], 8)


def test_a_turn_that_is_named_after_a_longer_stem_is_another(driver: Driver) -> None:
    """A2's care for `job-1` and `job-10`: a stem ends where it ends."""
    first = turn(driver, "ab~1", HELLO, HELLO)
    if driver.engine.core.sessions.find("t", "s").mode is SessionMode.TREE:
        other = turn(driver, "c~1", MORE, [5, *MORE], stem="a", reply=text(first.ids))
        assert other.ids == expected([5, *MORE], 8)


@pytest.mark.parametrize(
    ("said", "shown", "goes_on"),
    [
        ("<think>hm</think>\n\nFour", "Four", True),
        ("<think>hm</think>Four", "Four", True),
        ("Sure: Four", "Four", False),
        ("Four", "", False),
        ("", "", True),
        ("Close it by </think> Four", "Four", False),
        ("<think>hm</think>It is </think> Four", "Four", False),
        ("<think>hm</think>It is </think> Four", "It is </think> Four", True),
        ("<think>hm</think>Four", "<think>hm</think>Four", True),
    ],
)
def test_reasoning_is_not_part_of_what_clients_send_back(said: str, shown: str, goes_on: bool) -> None:
    """But a reply whose beginning was cut off is an edited one."""
    driver = Driver(ScriptRunner([*said.encode()], vocab_bytes=VOCAB, eos_id=EOS, page_size=4))
    driver.open(mode=SessionMode.TREE)
    driver.turn("a~1", HELLO, 40, from_head=False, root_ids=tuple(HELLO), whole=True, rid="a~1")
    driver.run()
    second = turn(driver, "b~1", MORE, [3, *MORE], stem="a", reply=shown)
    length = len(HELLO) + len(said.encode()) + 1 + len(MORE) if goes_on else 1 + len(MORE)
    assert second.end.prompt_tokens == length


@pytest.mark.parametrize(("reasoning", "goes_on"), [("", True), (" hm\n", True), ("hmm", False), ("m", False)])
@pytest.mark.parametrize("begun", [False, True])
def test_reasoning_that_is_sent_back_is_compared(reasoning: str, goes_on: bool, begun: bool) -> None:
    """T6: also where the prompt began it, as some templates do."""
    prompt, said = (b"Two and two?<think>\n", b"hm</think>Four") if begun else (b"Two?", b"<think>hm</think>Four")
    driver = Driver(ScriptRunner([*said], vocab_bytes=VOCAB, eos_id=EOS, page_size=4))
    driver.open(mode=SessionMode.TREE)
    driver.turn("a~1", [*prompt], 40, from_head=False, root_ids=tuple(prompt), whole=True, rid="a~1")
    driver.run()
    second = turn(driver, "b~1", MORE, [3, *MORE], stem="a", reply="Four", reasoning=reasoning)
    assert second.end is not None
    assert second.end.prompt_tokens == (len(prompt) + len(said) if goes_on else 0) + 1 + len(MORE)


def test_a_stop_string_is_not_part_of_the_reply() -> None:
    """S4: the history has its tokens all the same."""
    driver = Driver(ScriptRunner([*b"one two END and"], vocab_bytes=VOCAB, eos_id=EOS, page_size=4))
    driver.open(mode=SessionMode.TREE)
    stopping = SamplingParams(max_tokens=40, stop=("END",))
    driver.turn("a~1", HELLO, from_head=False, root_ids=tuple(HELLO), whole=True, rid="a~1", sampling=stopping)
    driver.run()
    second = turn(driver, "b~1", MORE, [3, *MORE], stem="a", reply="one two")
    assert second.end.prompt_tokens == len(HELLO) + len(b"one two END") + len(MORE)


CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = json.dumps([{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("rain", "sun")])
RAIN = canonical_call("rain", '{"days": 2, "city": "Oslo"}')
SUN = canonical_call("sun", "")
MARKS = {257: "[TOOL_CALLS]", 258: "[ARGS]"}
WRITTEN: dict[ToolFormat, list[bytes | int]] = {
    ToolFormat.HERMES: [
        b"Let me see.\n",
        b'<tool_call>\n{"name": "rain", "arguments": {"city":"Oslo","days": 2}}\n</tool_call>\n',
        b'<tool_call>{"name": "sun", "arguments": {}}</tool_call>',
    ],
    ToolFormat.QWEN_XML: [
        b"Let me see.\n<tool_call>\n<function=rain>\n<parameter=city>\nOslo\n</parameter>\n",
        b"<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>\n",
        b"<tool_call>\n<function=sun>\n</function>\n</tool_call>",
    ],
    ToolFormat.MISTRAL_ARGS: [
        b"Let me see.",
        257,
        b"rain",
        258,
        b'{"city": "Oslo", "days": 2}',
        257,
        b"sun",
        258,
        b"{}",
    ],
}
"""In tokens; a number is a control token of `MARKS`."""


def writing(said: Sequence[bytes | int]) -> tuple[Driver, int]:
    """A worker whose model says this, token by token; and how many tokens that is with its end."""
    pieces = [piece for piece in said if isinstance(piece, bytes)]
    numbers = iter(range(259, 259 + len(pieces)))
    ids = [next(numbers) if isinstance(piece, bytes) else piece for piece in said]
    driver = Driver(ScriptRunner(ids, vocab_bytes=[*VOCAB, b"", b"", *pieces], eos_id=EOS, page_size=4))
    driver.open(mode=SessionMode.TREE)
    return driver, len(ids) + 1


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize(
    ("reply", "calls", "goes_on"),
    [
        ("Let me see.", (RAIN, SUN), True),
        ("Let me see. ", (RAIN, SUN), True),
        ("", (RAIN, SUN), False),
        ("Let me see.", (RAIN,), False),
        ("Let me see.", (SUN, RAIN), False),
        ("Let me see.", (RAIN.replace("Oslo", "Rome"), SUN), False),
        ("Let me see.", (RAIN.replace("rain", "snow"), SUN), False),
        ("Let me see.", (RAIN.replace("2", "3"), SUN), False),
    ],
)
def test_calls_are_part_of_what_clients_send_back(
    kind: ToolFormat, reply: str, calls: tuple[str, ...], goes_on: bool
) -> None:
    """S1, S3, T6: by name and arguments, whatever way the model writes them; an edited call begins a branch."""
    driver, length = writing(WRITTEN[kind])
    driver.turn("a~1", HELLO, 20, from_head=False, root_ids=tuple(HELLO), whole=True, rid="a~1")
    driver.run()
    notation = Notation(calls=kind.value, tools=TOOLS, marks=tuple(MARKS.items()))
    second = turn(driver, "b~1", MORE, [3, *MORE], stem="a", reply=reply, calls=calls, notation=notation)
    assert second.end.prompt_tokens == (len(HELLO) + length if goes_on else 1) + len(MORE)


@pytest.mark.parametrize(("reasoning", "goes_on"), [("", True), ("hm", True), ("ham", False)])
@pytest.mark.parametrize("begun", [False, True])
def test_reasoning_before_calls_is_told_apart(reasoning: str, goes_on: bool, begun: bool) -> None:
    """T6: also where the prompt began it."""
    prompt, thought = (b"So?<think>\n", b"hm</think>") if begun else (b"So?", b"<think>hm</think>")
    driver, length = writing([thought, *WRITTEN[ToolFormat.HERMES]])
    driver.turn("a~1", [*prompt], 20, from_head=False, root_ids=tuple(prompt), whole=True, rid="a~1")
    driver.run()
    said_back: dict[str, Any] = {"reply": "Let me see.", "calls": (RAIN, SUN), "reasoning": reasoning}
    notation = Notation(calls="hermes", tools=TOOLS, reasoning=("<think>", "</think>"))
    second = turn(driver, "b~1", MORE, [3, *MORE], stem="a", notation=notation, **said_back)
    assert second.end.prompt_tokens == (len(prompt) + length if goes_on else 1) + len(MORE)


def test_opening_and_going_on_are_one_request_for_who_sends_everything(driver: Driver) -> None:
    """S14: there is no history that such a turn could miss (T6)."""
    first = turn(driver, "a~1", HELLO, HELLO, create=True)
    second = turn(driver, "b~1", MORE, [1], stem="a", reply=text(first.ids), create=True)
    assert second.ids == expected([*HELLO, *first.ids, *MORE], 8)


def test_tools_are_read_once_for_all_turns_that_may_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: a client's tools may be megabytes, and its turns alike may be many; every session of the worker waits."""
    driver, _ = writing(WRITTEN[ToolFormat.HERMES])
    for number in range(5):
        driver.turn(f"a~{number}", HELLO, 20, from_head=False, root_ids=tuple(HELLO), whole=True, rid=f"a~{number}")
        driver.run()
    read: list[str] = []
    loads = json.loads

    def noted(text: str, **how: Any) -> Any:
        read.append(text)
        return loads(text, **how)

    monkeypatch.setattr(json, "loads", noted)
    notation = Notation(calls="hermes", tools=TOOLS)
    turn(driver, "b~1", MORE, [3, *MORE], stem="a", reply="Something else.", calls=(SUN,), notation=notation)
    assert read.count(TOOLS) == 1
