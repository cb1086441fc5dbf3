"""Replies taken apart: tool calls and reasoning, whatever the format, wherever the text is cut."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.replies.calls import merged
from actors.replies.formats import ReplyFormat, ToolFormat
from actors.replies.parts import CallArguments, CallBegins, Part, PartReader, PlainReader, ReasoningPart, TextPart
from actors.replies.reader import call_reader, reply_reader
from actors.replies.reasoning import ReasoningReader, Tags

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
FORMATS = list(ToolFormat)
THINK = Tags("<think>", "</think>")


def read(reader: PartReader, *pieces: str) -> list[Part]:
    parts: list[Part] = []
    for piece in pieces:
        parts += reader.push(piece)
    return merged(parts + reader.finish())


def of(kind: ToolFormat) -> PartReader:
    return call_reader(kind, TOOLS)


def calls(parts: list[Part]) -> list[tuple[str, str]]:
    """(name, arguments) of each call."""
    found: dict[int, list[str]] = {}
    for part in parts:
        if isinstance(part, CallBegins):
            assert part.number == len(found)
            found[part.number] = [part.name, ""]
        elif isinstance(part, CallArguments):
            found[part.number][1] += part.text
    return [(name, arguments) for name, arguments in found.values()]


def text(parts: list[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def xml(name: str, **values: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


PARIS = '{"city": "Paris {\\"x\\"} </tool_call> é", "days": 3}'
WELL_FORMED: list[tuple[ToolFormat, str, str, list[tuple[str, str]]]] = [
    (ToolFormat.HERMES, hermes("weather", PARIS), "", [("weather", PARIS)]),
    (
        ToolFormat.HERMES,
        "Let me see.\n" + hermes("weather", PARIS) + "\n" + hermes("now", "{}") + "\n",
        "Let me see.",
        [("weather", PARIS), ("now", "{}")],
    ),
    (ToolFormat.HERMES, '<tool_call>{"arguments":{"a":[1]},"name":"now"}</tool_call>', "", [("now", '{"a":[1]}')]),
    (ToolFormat.HERMES, '<tool_call>{"name": "now"}</tool_call> Done.', " Done.", [("now", "{}")]),
    (ToolFormat.HERMES, '<tool_call>{"name":"now","arguments":"{\\"a\\": 1}"}</tool_call>', "", [("now", '{"a": 1}')]),
    (ToolFormat.HERMES, hermes("now", "{}").replace("}}", "}}}"), "", [("now", "{}")]),
    (ToolFormat.HERMES, hermes("now", '{"a": 1}').replace("}}", "}"), "", [("now", '{"a": 1}')]),
    (ToolFormat.LLAMA3, f'{{"name": "weather", "parameters": {PARIS}}}', "", [("weather", PARIS)]),
    (ToolFormat.LLAMA3, '\n{"type": "function", "name": "now", "parameters": {}}', "", [("now", "{}")]),
    (ToolFormat.LLAMA3, '<|python_tag|>{"name": "now", "arguments": {"a": null}}', "", [("now", '{"a": null}')]),
    (
        ToolFormat.LLAMA3,
        '{"name": "now", "parameters": {}}; {"name": "weather", "parameters": {"city": "Rome"}}\n',
        "",
        [("now", "{}"), ("weather", '{"city": "Rome"}')],
    ),
    (ToolFormat.LLAMA3, 'Wait.\n<|python_tag|>{"name": "now", "parameters": {}}', "Wait.", [("now", "{}")]),
    (
        ToolFormat.MISTRAL,
        'Ok [TOOL_CALLS] [{"name": "now", "arguments": {}}, '
        '{"arguments": {"city": "["}, "name": "weather", "id": "123456789"}]',
        "Ok",
        [("now", "{}"), ("weather", '{"city": "["}')],
    ),
    (
        ToolFormat.MISTRAL_ARGS,
        '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{"city": "Rome"}',
        "",
        [("now", "{}"), ("weather", '{"city": "Rome"}')],
    ),
    (ToolFormat.MISTRAL_ARGS, '[TOOL_CALLS]now{"a": 1}', "", [("now", '{"a": 1}')]),
    (
        ToolFormat.QWEN_XML,
        "So:\n" + xml("weather", city='"Ro\nme"</tool_call>', days="3") + "\n" + xml("now") + "\n",
        "So:",
        [("weather", '{"city": "\\"Ro\\nme\\"</tool_call>", "days": 3}'), ("now", "{}")],
    ),
    (
        ToolFormat.QWEN_XML,
        xml("now", flag="True", names='["a", {}]', other="plain words"),
        "",
        [("now", '{"flag": true, "names": ["a", {}], "other": "plain words"}')],
    ),
]


@pytest.mark.parametrize(("kind", "reply", "shown", "wanted"), WELL_FORMED)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_calls_are_told_from_text(
    kind: ToolFormat, reply: str, shown: str, wanted: list[tuple[str, str]], size: int
) -> None:
    """Each call has its number, its name and its arguments as they were written, or as JSON."""
    pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
    parts = read(of(kind), *pieces)
    assert calls(parts) == wanted
    assert text(parts) == shown
    for _, arguments in wanted:
        assert isinstance(json.loads(arguments), dict)


NO_CALLS: list[tuple[ToolFormat, str]] = [
    (ToolFormat.HERMES, "<tool_call>not json</tool_call> and more"),
    (ToolFormat.HERMES, " a \n<tool_call>\n[1]</tool_call>\n"),
    (ToolFormat.HERMES, '<tool_call>{"name": 7, "arguments": {}}</tool_call>'),
    (ToolFormat.HERMES, '<tool_call>{"name": "now", "arguments": [1]}</tool_call>'),
    (ToolFormat.HERMES, '<tool_call>{"name": "now", "arguments": "no object"}</tool_call>'),
    (ToolFormat.HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
    (ToolFormat.HERMES, '<tool_call>{"name": "no'),
    (ToolFormat.HERMES, '<tool_call>{"name": "now" "arguments"}'),
    (ToolFormat.HERMES, "  <tool_cal"),
    (ToolFormat.HERMES, "<tool_call>"),
    (ToolFormat.HERMES, "x < y <tool <tool_ call> \n\n"),
    (ToolFormat.LLAMA3, '{"name": "somebody else", "parameters": {}}'),
    (ToolFormat.LLAMA3, '{"answer": {"name": "now"}}'),
    (ToolFormat.LLAMA3, ' \n{"name": "Ann", "age": 3} '),
    (ToolFormat.LLAMA3, "<|python_tag|>print(1)"),
    (ToolFormat.LLAMA3, 'The call is {"name": "now", "parameters": {}}'),
    (ToolFormat.LLAMA3, "{"),
    (ToolFormat.LLAMA3, " \n"),
    (ToolFormat.MISTRAL, "[TOOL_CALLS] nothing here"),
    (ToolFormat.MISTRAL, "[TOOL_CALLS]"),
    (ToolFormat.MISTRAL, '[TOOL_CALLS] ["name"]'),
    (ToolFormat.MISTRAL, "a [TOOL_CALL"),
    (ToolFormat.MISTRAL_ARGS, "[TOOL_CALLS]now[ARGS]"),
    (ToolFormat.QWEN_XML, "<tool_call>\n<parameter=a>\n1\n</parameter>"),
    (ToolFormat.QWEN_XML, " <tool_call>\n<func"),
    (ToolFormat.QWEN_XML, '<tool_call>\n{"name": "now"}\n</tool_call>\n'),
]


@pytest.mark.parametrize(("kind", "reply"), NO_CALLS)
def test_what_is_no_call_is_text_to_the_letter(kind: ToolFormat, reply: str) -> None:
    parts = read(of(kind), *reply)
    assert calls(parts) == []
    assert text(parts) == reply


@pytest.mark.parametrize("kind", FORMATS)
def test_text_without_calls_is_untouched(kind: ToolFormat) -> None:
    reply = "  Is 3 < 4? <b>yes</b>, \n\nand [1] too; {x}  \n"
    assert read(of(kind), *reply) == [TextPart(reply)]


def test_arguments_are_told_as_they_come() -> None:
    """A long argument must not be held back until the call is complete."""
    reader = of(ToolFormat.HERMES)
    assert reader.push('<tool_call>{"name": "weather", "argu') == []
    assert reader.push('ments": {"ci') == [CallBegins(0, "", "weather"), CallArguments(0, '{"ci')]
    assert reader.push('ty": "Pa') == [CallArguments(0, 'ty": "Pa')]
    assert reader.push('ris"}') == [CallArguments(0, 'ris"}')]
    assert reader.push("}\n</tool") == []
    assert reader.push("_call>") == []
    assert reader.finish() == []


def test_values_without_quotes_are_told_as_they_come() -> None:
    reader = of(ToolFormat.QWEN_XML)
    begin = reader.push("<tool_call><function=weather><parameter=city>\nPa")
    assert merged(begin) == [CallBegins(0, "", "weather"), CallArguments(0, '{"city": "Pa')]
    assert reader.push('r"is\n') == [CallArguments(0, 'r\\"is')]
    assert reader.push("</parameter></function>") == [CallArguments(0, '"}')]


@pytest.mark.parametrize(
    ("kind", "reply", "arguments"),
    [
        (ToolFormat.HERMES, '<tool_call>{"name": "now", "arguments": {"a": "b', '{"a": "b'),
        (ToolFormat.HERMES, '<tool_call>{"name": "now", "arguments": {"a": 1}}</tool', '{"a": 1}'),
        (ToolFormat.LLAMA3, '{"name": "now", "parameters": {"a"', '{"a"'),
        (ToolFormat.MISTRAL, '[TOOL_CALLS] [{"name": "now", "arguments": {"a":', '{"a":'),
        (ToolFormat.QWEN_XML, "<tool_call><function=weather><parameter=city>\nRo", '{"city": "Ro'),
    ],
)
def test_a_call_that_is_cut_keeps_what_there_is(kind: ToolFormat, reply: str, arguments: str) -> None:
    """N58: `max_tokens` may end it anywhere."""
    assert calls(read(of(kind), *reply)) == [("now" if "now" in reply else "weather", arguments)]


def test_a_call_that_loses_itself_ends_where_no_json_goes_on() -> None:
    """What follows is text, and the next call is one again."""
    broken = '<tool_call>{"name": "now", "arguments": {"a": </tool_call>\n' + hermes("now", "{}") + " ok"
    parts = read(of(ToolFormat.HERMES), *broken)
    assert calls(parts) == [("now", '{"a": '), ("now", "{}")]
    assert text(parts) == " ok"


REASONED: list[tuple[bool, str, str, str]] = [
    (False, "<think>\nWell.\n\nSo\n</think>\n\nYes.", "Well.\n\nSo", "Yes."),
    (False, " \n<think></think>Yes. ", "", "Yes. "),
    (False, "Yes <think>no</think>", "", "Yes <think>no</think>"),
    (False, "<thin", "", "<thin"),
    (False, " ", "", " "),
    (True, "Well.</think>\nYes.", "Well.", "Yes."),
    (True, "\n<think>\nWell </think> Yes.", "Well", "Yes."),
    (True, "Well </thin", "Well </thin", ""),
    (True, "</think>Yes", "", "Yes"),
    (True, " never ends \n", "never ends", ""),
]


@pytest.mark.parametrize(("begun", "reply", "reasoning", "answer"), REASONED)
def test_reasoning_is_told_from_the_answer(begun: bool, reply: str, reasoning: str, answer: str) -> None:
    parts = read(ReasoningReader(THINK, PlainReader(), begun=begun), *reply)
    assert "".join(part.text for part in parts if isinstance(part, ReasoningPart)) == reasoning
    assert text(parts) == answer


def test_a_call_follows_reasoning_and_none_is_seen_within_it() -> None:
    reply = f"<think>I could {hermes('now', '{}')}</think>\n{hermes('weather', '{}')}"
    parts = read(ReasoningReader(THINK, of(ToolFormat.HERMES), begun=False), *reply)
    assert calls(parts) == [("weather", "{}")]
    assert text(parts) == ""
    assert isinstance(parts[0], ReasoningPart)


PIECES = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<|python_tag|>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "[CALL_ID]",
            "<think>",
            "</think>",
        ),
        *(
            "<function=now>",
            "<function=weather>",
            "</function>",
            "<parameter=city>",
            "<parameter=days>",
            "</parameter>",
        ),
        *(
            '{"name": "now"',
            '"name": "weather", ',
            '"arguments": {',
            '"parameters": {"city": "x\\"',
            "{",
            "}",
            "[",
            "]",
        ),
        *(", ", ";", '"', "\\", ":", "<", ">", " ", "\n", "text", "é", "3", "now", "true", "</", "<tool", "[TOOL"),
    ]
)
READERS: dict[str, Callable[[], PartReader]] = {
    **{kind.value: lambda kind=kind: of(kind) for kind in FORMATS},  # type: ignore[misc]
    "think": lambda: ReasoningReader(THINK, of(ToolFormat.HERMES), begun=False),
    "thinking": lambda: ReasoningReader(THINK, of(ToolFormat.QWEN_XML), begun=True),
}
REPLIES = st.one_of(
    st.lists(PIECES, max_size=25).map("".join),
    st.lists(st.sampled_from([reply for _, reply, _, _ in WELL_FORMED] + [r for _, r in NO_CALLS]), max_size=3).map(
        "".join
    ),
)


@settings(max_examples=400, deadline=None)
@given(name=st.sampled_from(sorted(READERS)), reply=REPLIES, data=st.data())
def test_the_parts_do_not_depend_on_how_the_text_is_cut(name: str, reply: str, data: st.DataObject) -> None:
    """I2: any cut, into single characters too, gives the same parts; and no letter of a word is lost."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(reply)), max_size=8)))
    pieces = [reply[a:b] for a, b in zip([0, *cuts], [*cuts, len(reply)], strict=True)]
    whole = read(READERS[name](), reply)
    assert read(READERS[name](), *pieces) == whole
    assert read(READERS[name](), *reply) == whole
    told = "".join(part.text for part in whole if not isinstance(part, CallBegins))
    assert told.count("text") == reply.count("text")
    assert all(not isinstance(part, CallArguments) or part.number < len(calls(whole)) for part in whole)


@pytest.mark.parametrize("kind", list(ToolFormat))
@pytest.mark.parametrize("begins", ["a", "[TOOL_CALLS]"])
def test_blanks_without_end_are_read_in_no_time(kind: ToolFormat, begins: str) -> None:
    """I1: some models end in nothing but line breaks, one by one."""
    reader, blanks = call_reader(kind, []), 40_000
    began = time.process_time()
    parts = [*reader.push(begins), *(part for _ in range(blanks) for part in reader.push("\n")), *reader.finish()]
    assert time.process_time() - began < 3.0
    assert "".join(part.text for part in parts if isinstance(part, TextPart)).startswith(begins)


class Measured(str):
    """Text that counts how often its length is asked for."""

    asked = 0

    def __len__(self) -> int:
        Measured.asked += 1
        return super().__len__()


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("reasons", [False, True])
def test_what_is_held_is_not_counted_over_with_each_piece(
    monkeypatch: pytest.MonkeyPatch, begun: bool, reasons: bool
) -> None:
    """I1: a reply may end in nothing but blanks, thousands of them, and whoever traces its tokens asks after each."""
    monkeypatch.setattr(Measured, "asked", 0)
    reader = reply_reader(ReplyFormat(ToolFormat.HERMES, THINK if reasons else None), TOOLS, thinking=begun)
    for number in range(1, 501):
        reader.push(Measured(" "))
        assert reader.held == number
    assert Measured.asked < 2000
