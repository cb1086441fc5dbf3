"""Which tokens became a reply's text, reasoning, or neither: however it is cut into tokens and held back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.ingress.attribution import TracedReader
from actors.model.detokenizer import Detokenizer
from actors.replies.calls import merged
from actors.replies.formats import ToolFormat
from actors.replies.parts import Part, PartReader, PlainReader, ReasoningPart, TextPart
from actors.replies.reader import call_reader
from actors.replies.reasoning import ReasoningReader, Tags

TOOLS = [{"type": "function", "function": {"name": "now"}}]
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def reader_of(kind: str, *, begun: bool = False) -> PartReader:
    answer = call_reader(ToolFormat.HERMES, TOOLS) if "calls" in kind else PlainReader()
    return ReasoningReader(Tags("<think>", "</think>"), answer, begun=begun) if "thinks" in kind else answer


def traced(reader: PartReader, pieces: list[bytes], stop: tuple[str, ...] = (), matched: str | None = None) -> Any:
    """(parts, tokens of each text put together, tokens of reasoning) of a reply that consists of these tokens."""
    made = TracedReader(Detokenizer(pieces, stop), reader, lambda token, known: token)
    known = ((0.0, ()),) * len(pieces)
    parts = merged(made.push(tuple(range(len(pieces))), known) + made.finish(matched))
    shown = [token for part in parts if isinstance(part, TextPart) for token in part.logprobs]
    return parts, [pieces[token].decode("utf-8", "replace") for token in shown], made.reasoning_tokens


def plain(reader: PartReader, text: str) -> list[Part]:
    return merged(reader.push(text) + reader.finish())


def without(parts: list[Part]) -> list[Part]:
    return [TextPart(part.text) if isinstance(part, TextPart) else part for part in parts]


CASES: list[tuple[str, list[str], list[str], int]] = [
    ("plain", ["He", "llo", " you"], ["He", "llo", " you"], 0),
    ("plain thinks", ["<think>", "\n", "Hm", ".", "\n", "</think>", "\n\n", "Yes", "."], ["Yes", "."], 2),
    ("plain thinks", ["<thi", "nk>Hm", ".</", "think>", "t", "o be"], ["t", "o be"], 2),
    ("plain thinks", ["Yes", "."], ["Yes", "."], 0),
    ("calls", ["So", ":", "\n", *CALL, "\n", "Done"], ["So", ":", "\n", "Done"], 0),
    ("calls", ["a ", "<", "b", " <tool", "_call", "> c"], ["a ", "<", "b", " <tool", "_call", "> c"], 0),
    ("calls", ["<tool_call>", "{", '"x"', ": 1}", " no"], ["<tool_call>", "{", '"x"', ": 1}", " no"], 0),
    ("calls thinks", ["<think>", "think", " ", "hard", "</think>", "think", "ing", CALL], ["think", "ing"], 3),
    ("calls thinks", ["<think>a</think>b", CALL], [], 1),
]


@pytest.mark.parametrize(("kind", "pieces", "shown", "reasoning"), CASES)
def test_each_token_goes_with_what_it_became(kind: str, pieces: list[str], shown: list[str], reasoning: int) -> None:
    """A tag, a call, and the blanks before them are neither; one token that is reasoning and text is counted once."""
    parts, told, counted = traced(reader_of(kind), [piece.encode() for piece in pieces])
    assert without(parts) == plain(reader_of(kind), "".join(pieces))
    assert (told, counted) == (shown, reasoning)


def test_a_character_over_several_tokens_has_them_all() -> None:
    """I2: their text comes with the last of them."""
    _, told, _ = traced(PlainReader(), [b"a", "é".encode()[:1], "é".encode()[1:], b"b"])
    assert len(told) == 4


def test_what_a_stop_string_cuts_off_is_not_shown() -> None:
    parts, told, _ = traced(PlainReader(), [b"So", b" it", b" EN", b"D"], stop=("END",), matched="END")
    assert without(parts) == [TextPart("So it ")]
    assert told[:2] == ["So", " it"]
    assert "D" not in told[3:]


def test_reasoning_that_the_prompt_began() -> None:
    _, told, counted = traced(reader_of("plain thinks", begun=True), [b"Hm", b".", b"</think>", b"Yes"])
    assert (told, counted) == (["Yes"], 2)


WORDS = ["a", "b c", " ", "\n", "<think>", "</think>", "<", "<tool_call>", "</tool_call>", CALL, "think", "é", "{", "}"]


@settings(deadline=None)
@given(
    words=st.lists(st.sampled_from(WORDS), max_size=10),
    cuts=st.lists(st.integers(1, 5), max_size=40),
    kind=st.sampled_from(["plain", "calls", "plain thinks", "calls thinks"]),
)
def test_whatever_comes_its_parts_are_the_readers(words: list[str], cuts: list[int], kind: str) -> None:
    """I2: tracing changes nothing, tells each token once and in order, and only what holds some of the text."""
    data = "".join(words).encode()
    pieces, at = [], 0
    for cut in [*cuts, len(data) + 1]:
        if at < len(data):
            pieces.append(data[at : at + cut])
            at += cut
    made = TracedReader(Detokenizer(pieces, ()), reader_of(kind), lambda token, known: token)
    parts: list[Part] = []
    for token in range(len(pieces)):
        parts += made.push((token,), ((0.0, ()),))
    parts = merged(parts + made.finish(None))
    assert without(parts) == plain(reader_of(kind), data.decode())
    told = [token for part in parts if isinstance(part, TextPart) for token in part.logprobs]
    assert told == sorted(set(told))
    thought = sum(len(part.text) for part in parts if isinstance(part, ReasoningPart))
    assert (made.reasoning_tokens > 0) == (thought > 0) or len(pieces) < 8
    if kind == "plain":
        assert told == list(range(len(pieces)))
