"""A grammar for replies that have to call tools, or to call them rightly; and for what comes behind reasoning. Pure.

In the notation of llguidance, which is Lark with `%json` for a JSON schema, `<[7]>` for a control token by its id, and
`[lazy]` for text that ends where it first can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from actors.messages import Grammar, GrammarKind
from actors.replies import hermes, mistral, xml
from actors.replies.demand import Demand
from actors.replies.formats import ReplyFormat, ToolFormat
from actors.replies.notation import CannotHold, in_slashes, json_rule, moved_schema, quoted
from actors.replies.xml_grammar import xml_parameters

MAX_PARALLEL = 32
"""Calls in one reply that must hold some."""
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_OPENS = frozenset(
    ("additionalProperties", "unevaluatedProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref")
)
_ANYTHING = "(?s:.*)"


def reply_grammar(
    format: ReplyFormat,
    tools: Sequence[Mapping[str, Any]],
    demand: Demand,
    answer: Grammar | None,
    *,
    thinking: bool,
) -> Grammar | None:
    """What the whole reply must conform to. `answer`: what it must be where it calls no tool. `thinking`: the prompt
    ends within reasoning. None: it may be anything. Raises CannotHold."""
    calls = format.tools if tools and (demand.enforced or answer is not None) else None
    if calls is None and (answer is None or format.reasoning is None):
        return answer
    if answer is not None and answer.kind is GrammarKind.EBNF:
        if calls is None and not thinking:
            return answer
        raise CannotHold("a grammar cannot be combined with tools, nor with a reply that begins with reasoning")
    rules = _Rules(format, tools, demand, answer)
    body = rules.body() if calls is not None else rules.answer()
    rules.add(f"start: {rules.before(thinking)}{body}", first=True)
    return Grammar(kind=GrammarKind.EBNF, text="\n".join(rules.lines) + "\n")


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """No arguments but those that have names, unless the schema speaks of others: functions take no others."""
    return schema if _OPENS & schema.keys() or "properties" not in schema else {**schema, "additionalProperties": False}


class _Rules:
    """Rules as they are made."""

    def __init__(
        self, format: ReplyFormat, tools: Sequence[Mapping[str, Any]], demand: Demand, answer: Grammar | None
    ) -> None:
        functions = [tool["function"] for tool in tools]
        self.lines: list[str] = []
        self._format = format
        self._demand = demand
        self._functions = [one for one in functions if demand.named in ("", one["name"])]
        self._answer = answer

    def add(self, line: str, *, first: bool = False) -> None:
        self.lines.insert(0 if first else len(self.lines), line)

    def before(self, thinking: bool) -> str:
        """Reasoning: the rest of it where the prompt has begun it, else as the model likes."""
        tags = self._format.reasoning
        if tags is None:
            return ""
        self.add("GAP: /\\n{0,2}/")
        self._until("thought", tags.ends)
        return "thought GAP " if thinking else f"({self._mark(tags.begins)} thought GAP)? "

    def answer(self) -> str:
        """What the reply must be where it calls nothing."""
        assert self._answer is not None
        kind, text = self._answer.kind, self._answer.text
        if kind is GrammarKind.JSON_SCHEMA:
            self.add(f"answer: {json_rule(json.loads(text), lenient=False)}")
        elif kind is GrammarKind.JSON_OBJECT:
            self.add(f"answer: {json_rule({'type': 'object'}, lenient=False)}")
        elif kind is GrammarKind.CHOICE:
            self.add("answer: " + " | ".join(quoted(choice) for choice in json.loads(text)))
        else:
            self.add(f"ANSWER: /{in_slashes(text)}/")
            return "ANSWER"
        return "answer"

    def body(self) -> str:
        calls = self._calls()
        if self._demand.forces:
            return calls
        if self._answer is not None:
            return f"({self.answer()} | {calls})"
        return self._freely(calls)

    def _freely(self, calls: str) -> str:
        """Text without calls, or calls with text before them."""
        if self._format.tools is ToolFormat.LLAMA3:
            self.add(f"TEXT: /([^{{ \\t\\r\\n]{_ANYTHING})?/")
            return f"(TEXT | {calls})"
        begins = self._begins()
        if begins in self._format.token_ids:
            self.add(f"TEXT: /{_ANYTHING}/")
        else:
            self.add(f"TEXT: /{_ANYTHING}/ & ~/{_ANYTHING}{in_slashes(re.escape(begins))}{_ANYTHING}/")
        self._until("opening", begins)
        opened = f"opening {self._behind_marker()}"
        return f"(TEXT | {opened})" if not self._demand.parallel else f"({opened})* TEXT"

    def _begins(self) -> str:
        kind = self._format.tools
        return mistral.BEGINS if kind in (ToolFormat.MISTRAL, ToolFormat.MISTRAL_ARGS) else hermes.BEGINS

    def _calls(self) -> str:
        """One call, or as many as are welcome."""
        if self._format.tools is ToolFormat.LLAMA3 and self._answer is not None and not self._demand.forces:
            self._define("chosen", json_rule(self._as_one_schema(), lenient=not self._demand.strict))
            return "chosen"
        if self._format.tools is ToolFormat.LLAMA3:
            return self._objects('{"name": NAME, "parameters": ', '"}"')
        call = f"{self._mark(self._begins())} {self._behind_marker()}"
        if self._once or self._format.tools is ToolFormat.MISTRAL:
            return call
        self.add(f"call: {call}")
        between = "" if self._format.tools is ToolFormat.MISTRAL_ARGS else '"\\n" '
        return f"call ({between}call){{0,{MAX_PARALLEL - 1}}}"

    @property
    def _once(self) -> bool:
        return bool(self._demand.named) or not self._demand.parallel

    def _behind_marker(self) -> str:
        """A call behind the marker that begins it; a list of calls where that is the format."""
        kind = self._format.tools
        if kind is ToolFormat.MISTRAL:
            one = self._objects('{"name": NAME, "arguments": ', '"}"')
            self._define("object", one)
            more = "" if self._once else f' (", " object){{0,{MAX_PARALLEL - 1}}}'
            return f'"[" object{more} "]"'
        if kind is ToolFormat.MISTRAL_ARGS:
            return self._behind_names()
        if kind is ToolFormat.QWEN_XML:
            return self._in_tags()
        return self._objects('\n{"name": NAME, "arguments": ', f'"}}\\n" {self._mark(hermes.ENDS)}')

    def _define(self, name: str, body: str) -> None:
        if not any(line.startswith(f"{name}: ") for line in self.lines):
            self.add(f"{name}: {body}")

    def _objects(self, before: str, after: str) -> str:
        """A call of each tool. `before`, which holds NAME, and the expression `after` stand around its arguments."""
        return self._choose(
            f"{quoted(before.replace('NAME', json.dumps(name)))} {arguments} {after}"
            for name, arguments in self._named_arguments()
        )

    def _behind_names(self) -> str:
        return self._choose(
            f"{quoted(name)} {self._mark(mistral.ARGS)} {arguments}" for name, arguments in self._named_arguments()
        )

    def _in_tags(self) -> str:
        choices = []
        for number, function in enumerate(self._functions):
            name, schema = str(function["name"]), function.get("parameters") or NO_ARGUMENTS
            parameters, rules = xml_parameters(schema, number, strict=name in self._demand.strict)
            for rule, body in rules:
                self._define(rule, body)
            ends = f'"</function>\\n" {self._mark(xml.ENDS)}'
            choices.append(f"{quoted(f'{chr(10)}<function={name}>{chr(10)}')} {parameters} {ends}")
        return self._choose(choices)

    def _named_arguments(self) -> Iterator[tuple[str, str]]:
        for number, (name, schema) in enumerate(self._schemas()):
            rule = f"arguments_{number}"
            self._define(rule, json_rule(schema, lenient=name not in self._demand.strict))
            yield name, rule

    def _schemas(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for function in self._functions:
            yield function["name"], _closed({"type": "object", **(function.get("parameters") or NO_ARGUMENTS)})

    def _as_one_schema(self) -> dict[str, Any]:
        """Calls as a schema: beside an answer that is JSON, too, their beginnings can only be told apart within one
        kind of rule."""
        definitions, calls = {}, []
        for number, (name, schema) in enumerate(self._schemas()):
            at = f"tool_{number}"
            definitions[at] = moved_schema(schema, f"#/$defs/{at}")
            properties = {"name": {"const": name}, "parameters": {"$ref": f"#/$defs/{at}"}}
            call = {"type": "object", "properties": properties, "required": list(properties)}
            calls.append({**call, "additionalProperties": False})
        return {"anyOf": calls, "$defs": definitions}

    def _choose(self, choices: Iterable[str]) -> str:
        self._define("chosen", " | ".join(choices))
        return "chosen"

    def _mark(self, marker: str) -> str:
        token = self._format.token_ids.get(marker)
        return quoted(marker) if token is None else f"<[{token}]>"

    def _until(self, rule: str, marker: str) -> None:
        """A rule for text up to a marker and with it."""
        token = self._format.token_ids.get(marker)
        if token is None:
            self._define(f"{rule}[lazy]", f"/{_ANYTHING}{in_slashes(re.escape(marker))}/")
        else:
            self._define("ANYTHING", f"/{_ANYTHING}/")
            self._define(rule, f"ANYTHING <[{token}]>")
