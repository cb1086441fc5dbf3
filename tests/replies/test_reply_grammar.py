"""Grammars for replies: the real library lets through exactly what the readers understand."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest

from actors.messages import Grammar, GrammarKind
from actors.replies.demand import ANY, Demand
from actors.replies.formats import MARKERS, REASONING, ReplyFormat, ToolFormat
from actors.replies.grammar import reply_grammar
from actors.replies.notation import CannotHold
from actors.replies.parts import CallArguments, CallBegins, ReasoningPart, TextPart
from actors.replies.reader import reply_reader
from actors.runner.grammar.check import check
from actors.runner.grammar.matchers import Matchers

CITY = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "days": {"$ref": "#/$defs/Days"},
        "note": {"type": ["string", "null"], "maxLength": 6},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"Days": {"type": "integer", "minimum": 1, "maximum": 9}},
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}, NOW]
EOS = 256
FORMATS = list(ToolFormat)


def model_of(kind: ToolFormat, *, special: bool, reasoning: str | None = None) -> tuple[ReplyFormat, Matchers]:
    """A vocabulary of bytes, an end, and the format's markers: as control tokens (`special`) or as plain ones."""
    tags = REASONING[reasoning] if reasoning else None
    markers = format_markers(ReplyFormat(kind, tags))
    ids = {marker: 257 + number for number, marker in enumerate(markers)}
    table = [bytes([byte]) for byte in range(256)] + [b""]
    table += [b"" if special else marker.encode() for marker in markers]
    known = ids if special else {}
    return ReplyFormat(kind, tags, takes_tools=True, token_ids=known), Matchers(table, frozenset({EOS}))


def format_markers(format: ReplyFormat) -> list[str]:
    assert format.tools is not None
    return [*MARKERS[format.tools], *((format.reasoning.begins, format.reasoning.ends) if format.reasoning else ())]


class Held:
    """A random writer that is held to a grammar."""

    def __init__(self, format: ReplyFormat, matchers: Matchers, grammar: Grammar) -> None:
        error, source = check(grammar.kind.value, grammar.text)
        assert error == "", (error, grammar.text)
        self._matchers = matchers
        self._prototype = matchers.compile(source)
        self._spelled = {token: marker for marker, token in format.token_ids.items()}
        self._spelled.update({token: bytes([token]).decode("latin-1") for token in range(256)})
        self._uids = itertools.count()

    def takes(self, text: str, format: ReplyFormat) -> bool:
        """Whether the grammar allows this reply to the end."""
        uid = next(self._uids)
        self._matchers.open(uid, self._prototype)
        ids: list[int] = []
        for token in tokens_of(text, format):
            if not self._matchers.allowed(uid, ids)[token]:
                return False
            ids.append(token)
        return bool(self._matchers.allowed(uid, ids)[EOS])

    def writes(self, seed: int, most: int = 3000) -> str:
        """What somebody writes who cares for printable letters and for an end, and for nothing else."""
        uid, chance = next(self._uids), random.Random(seed)
        self._matchers.open(uid, self._prototype)
        ids: list[int] = []
        while len(ids) < most:
            allowed = self._matchers.allowed(uid, ids)
            if allowed[EOS] and chance.random() < 0.3:
                break
            likely = [token for token in [*range(32, 127), 10, *range(257, len(allowed))] if allowed[token]]
            assert likely or allowed[EOS]
            if not likely:
                break
            ends = [token for token in likely if token >= 257 or token in b'"}]<\n']
            ids.append(chance.choice(ends if ends and chance.random() < 0.5 else likely))
        data = b"".join(
            self._spelled[token].encode("latin-1")
            if token < 256
            else self._matchers._vocab_bytes[token] or self._spelled[token].encode()
            for token in ids
        )
        return data.decode()


def tokens_of(text: str, format: ReplyFormat) -> list[int]:
    for number, marker in enumerate(format_markers(format)):
        text = text.replace(marker, chr(0xE000 + 257 + number))
    return [
        token
        for character in text
        for token in ([ord(character) - 0xE000] if ord(character) >= 0xE000 else character.encode())
    ]


def read(format: ReplyFormat, reply: str, thinking: bool = False) -> tuple[list[tuple[str, Any]], str, str]:
    """(calls with their arguments, text, reasoning)."""
    reader = reply_reader(format, TOOLS, thinking=thinking)
    parts = [*reader.push(reply), *reader.finish()]
    names = [part.name for part in parts if isinstance(part, CallBegins)]
    arguments = [
        "".join(p.text for p in parts if isinstance(p, CallArguments) and p.number == n) for n in range(len(names))
    ]
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    return [(name, json.loads(one)) for name, one in zip(names, arguments, strict=True)], text, reasoning


def check_arguments(calls: list[tuple[str, Any]]) -> None:
    for name, arguments in calls:
        if name == "now":
            assert arguments == {}
        else:
            assert arguments["city"] in ("Paris", "Rome")
            assert 1 <= arguments["days"] <= 9
            assert set(arguments) <= {"city", "days", "note"}


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_whoever_must_call_calls(kind: ToolFormat, special: bool) -> None:
    """tool_choice `required`: nothing but calls of known tools with right arguments, whoever writes."""
    format, matchers = model_of(kind, special=special)
    grammar = reply_grammar(format, TOOLS, Demand(required=True), None, thinking=False)
    assert grammar is not None
    held = Held(format, matchers, grammar)
    seen = set()
    for seed in range(14):
        calls, text, _ = read(format, held.writes(seed))
        assert calls
        assert text == ""
        check_arguments(calls)
        seen |= {name for name, _ in calls} | ({len(calls) > 1} & {True})
    assert {"weather", "now"} <= seen
    assert (True in seen) == (kind is not ToolFormat.LLAMA3)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_named_tool_is_called_once(kind: ToolFormat) -> None:
    format, matchers = model_of(kind, special=True)
    grammar = reply_grammar(format, TOOLS, Demand(named="weather"), None, thinking=False)
    assert grammar is not None
    held = Held(format, matchers, grammar)
    for seed in range(6):
        calls, text, _ = read(format, held.writes(seed))
        assert [name for name, _ in calls] == ["weather"]
        assert text == ""
        check_arguments(calls)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_strict_arguments_in_a_reply_that_may_be_text(kind: ToolFormat, special: bool) -> None:
    """`strict` with tool_choice `auto`: text as one likes, but no call that is wrong."""
    format, matchers = model_of(kind, special=special)
    tools, name = TOOLS[:1], "weather"
    grammar = reply_grammar(format, tools, Demand(strict=frozenset({name})), None, thinking=False)
    assert grammar is not None
    held = Held(format, matchers, grammar)
    assert held.takes("Just text, 3 < 4.", format)
    assert held.takes("", format)
    forced = reply_grammar(format, tools, Demand(named=name), None, thinking=False)
    assert forced is not None
    call = Held(format, matchers, forced).writes(1)
    assert held.takes(call, format)
    assert not held.takes(call.replace(name, "other"), format)
    if kind is not ToolFormat.LLAMA3:
        assert held.takes("Let me see. " + call, format)
    assert not held.takes(call.replace("Paris", "Prague").replace("Rome", "Prague"), format)


@pytest.mark.parametrize("kind", FORMATS)
def test_one_call_at_most_where_several_are_not_welcome(kind: ToolFormat) -> None:
    """parallel_tool_calls false."""
    format, matchers = model_of(kind, special=True)
    single = reply_grammar(format, TOOLS, Demand(parallel=False), None, thinking=False)
    named = reply_grammar(format, TOOLS, Demand(named="now"), None, thinking=False)
    assert single is not None
    assert named is not None
    call = Held(format, matchers, named).writes(0)
    held = Held(format, matchers, single)
    assert held.takes(call, format)
    assert held.takes("no call", format)
    for between in ("", "\n", ";", "; "):
        assert not held.takes(call + between + call, format)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_an_answer_has_its_form_and_calls_theirs(kind: ToolFormat, special: bool) -> None:
    """response_format beside tools: either is right, and nothing else."""
    format, matchers = model_of(kind, special=special)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    answer = Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(schema))
    grammar = reply_grammar(format, TOOLS, ANY, answer, thinking=False)
    named = reply_grammar(format, TOOLS, Demand(named="now"), None, thinking=False)
    assert grammar is not None
    assert named is not None
    held = Held(format, matchers, grammar)
    assert held.takes('{"ok": true}', format)
    assert held.takes(Held(format, matchers, named).writes(0), format)
    assert not held.takes("text", format)
    assert not held.takes('{"ok": 1}', format)


ANSWERS = [
    Grammar(kind=GrammarKind.JSON_OBJECT),
    Grammar(kind=GrammarKind.CHOICE, text=json.dumps(['{"a": 1}', "x\ny"])),
    Grammar(kind=GrammarKind.REGEX, text=r'\{"a": [0-9/]/?(\n)?\}|/\/'),
]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("thinking", [False, True])
def test_reasoning_comes_before_what_has_a_form(answer: Grammar, special: bool, thinking: bool) -> None:
    """A model that thinks first may do so; where its prompt has begun to, it must end that first."""
    format, matchers = model_of(ToolFormat.HERMES, special=special, reasoning="think")
    grammar = reply_grammar(format, (), ANY, answer, thinking=thinking)
    assert grammar is not None
    held = Held(format, matchers, grammar)
    told = "Well, {}\nso </thin </think>\n\n"
    assert held.takes(("" if thinking else "<think>") + told + '{"a": 1}', format)
    assert held.takes('{"a": 1}', format) == (not thinking)
    assert not held.takes(told + "no", format)
    if not thinking:
        assert read(format, "<think>" + told + '{"a": 1}')[1:] == ('{"a": 1}', "Well, {}\nso </thin")


@pytest.mark.parametrize("reasoning", sorted(REASONING))
@pytest.mark.parametrize("thinking", [False, True])
def test_reasoning_comes_before_calls(reasoning: str, thinking: bool) -> None:
    format, matchers = model_of(ToolFormat.MISTRAL, special=True, reasoning=reasoning)
    grammar = reply_grammar(format, TOOLS, Demand(required=True), None, thinking=thinking)
    assert grammar is not None
    held = Held(format, matchers, grammar)
    thought = set()
    for seed in range(10):
        calls, text, reason = read(format, held.writes(seed), thinking)
        assert text == ""
        if calls:
            check_arguments(calls)
        thought.add(bool(reason))
    assert True in thought


def test_without_demands_nothing_is_held() -> None:
    format, _ = model_of(ToolFormat.HERMES, special=False, reasoning="think")
    assert reply_grammar(format, TOOLS, ANY, None, thinking=True) is None
    plain = ReplyFormat(ToolFormat.HERMES, None, takes_tools=True)
    answer = Grammar(kind=GrammarKind.EBNF, text='root ::= "x"')
    assert reply_grammar(plain, (), ANY, answer, thinking=False) is answer


def test_what_cannot_be_put_together_is_said() -> None:
    format, _ = model_of(ToolFormat.QWEN_XML, special=False, reasoning="think")
    own = Grammar(kind=GrammarKind.EBNF, text='root ::= "x"')
    for tools, thinking in ((TOOLS, False), ((), True)):
        with pytest.raises(CannotHold, match="cannot be combined"):
            reply_grammar(format, tools, ANY, own, thinking=thinking)
    text = {"type": "object", "properties": {"note": {"type": "string", "maxLength": 6}}}
    tools = [{"type": "function", "function": {"name": "write", "parameters": text}}]
    with pytest.raises(CannotHold, match="note"):
        reply_grammar(format, tools, Demand(strict=frozenset({"write"})), None, thinking=False)


@pytest.mark.parametrize("kind", [ToolFormat.HERMES, ToolFormat.LLAMA3])
def test_no_arguments_but_those_that_have_names(kind: ToolFormat) -> None:
    """A schema that says nothing of others means none: a function would not take them."""
    format, matchers = model_of(kind, special=False)
    for more in ({}, {"additionalProperties": {"type": "integer"}}):
        schema = {"type": "object", "properties": {"city": {"type": "boolean"}}, **more}
        tools = [{"type": "function", "function": {"name": "now", "parameters": schema}}]
        grammar = reply_grammar(format, tools, Demand(named="now"), None, thinking=False)
        assert grammar is not None
        held = Held(format, matchers, grammar)
        name = "parameters" if kind is ToolFormat.LLAMA3 else "arguments"
        for arguments, right in (('{"city": true}', True), ('{"city": true, "b": 1}', bool(more))):
            call = f'{{"name": "now", "{name}": {arguments}}}'
            call = call if kind is ToolFormat.LLAMA3 else f"<tool_call>\n{call}\n</tool_call>"
            assert held.takes(call, format) == right


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "odd",
    ["a ::= b", "\nroot ::= x\n", "// c", "start: x", '"""', "\u2028 é 😀", "\\ / \" ' { } \\u", "\x7f\x01\t", "%json"],
)
def test_what_schemas_say_is_no_notation(kind: ToolFormat, odd: str) -> None:
    """I1: texts that would mean something to the library mean nothing within a schema; choices are what they are."""
    properties = {"e": {"enum": [odd, "b"]}, "c": {"type": "integer", "description": odd, "title": odd}}
    schema = {"type": "object", "properties": properties, "required": ["e", "c"]}
    tools = [{"type": "function", "function": {"name": "now", "parameters": schema}}]
    format, matchers = model_of(kind, special=False)
    grammar = reply_grammar(format, tools, Demand(named="now"), None, thinking=False)
    assert grammar is not None
    held = Held(format, matchers, grammar)
    choices = set()
    for seed in range(6):
        calls, text, _ = read(format, held.writes(seed))
        assert text == ""
        choices.add(calls[0][1]["e"])
    assert choices <= {odd, "b"}


def test_a_schema_that_cannot_be_enforced_is_refused_where_it_is_strict() -> None:
    """Elsewhere what cannot be enforced is left out."""
    format, _ = model_of(ToolFormat.HERMES, special=False)
    odd = {"type": "object", "properties": {"a": {"type": "integer"}}, "unevaluatedProperties": False}
    tools = [{"type": "function", "function": {"name": "odd", "parameters": odd}}]
    for strict in (False, True):
        demand = Demand(required=True, strict=frozenset({"odd"} if strict else ()))
        grammar = reply_grammar(format, tools, demand, None, thinking=False)
        assert grammar is not None
        assert ("unevaluatedProperties" in check(grammar.kind.value, grammar.text)[0]) == strict
