"""Typed readers of JSON fields. Each either returns a value of the promised type or raises `Invalid` naming the field.

Absent and null mean the default; unknown fields are never looked at (rule I1).
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

import orjson

from actors.ingress.errors import Invalid

E = TypeVar("E", bound=Enum)

MAX_ID_BYTES = 256
MAX_JSON_DEPTH = 254
"""As deep as what was read can be written again: to workers, templates and stores."""
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})


def parse_object(body: bytes) -> dict[str, Any]:
    """The request body as a JSON object. Raises Invalid for anything else.

    The parser refuses invalid UTF-8, lone surrogates and NaN; its own words are not passed on.
    """
    try:
        tree = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if "limit" in error.msg:  # of nesting: the parser has no other
            raise _too_deep() from None
        where = f" (line {error.lineno}, column {error.colno})" if error.pos else ""
        raise Invalid(None, f"The body is not valid JSON in UTF-8{where}.", code="invalid_json") from None
    if not isinstance(tree, dict):
        raise Invalid(None, "The body must be a JSON object.", code="invalid_json")
    if body.count(b"[") + body.count(b"{") > MAX_JSON_DEPTH:
        _check_depth(tree)
    return tree


def _check_depth(tree: dict[str, Any]) -> None:
    """Raises Invalid. Writing it is the cheapest way to find out: a walk in Python through 16 MB takes seconds."""
    try:
        orjson.dumps(tree)
    except orjson.JSONEncodeError:
        raise _too_deep() from None


def _too_deep() -> Invalid:
    message = f"The body is nested too deeply: at most {MAX_JSON_DEPTH} levels of arrays and objects are read."
    return Invalid(None, message, code="invalid_json")


class Fields:
    """One JSON object and the path that leads to it."""

    def __init__(self, tree: dict[str, Any], path: str = "") -> None:
        self._tree = tree
        self._path = path

    @property
    def tree(self) -> dict[str, Any]:
        return self._tree

    @property
    def path(self) -> str:
        return self._path

    def at(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        """Whether the field is there at all, be it null."""
        return name in self._tree

    def raw(self, name: str) -> Any:
        return self._tree.get(name)

    def integer(self, name: str, *, least: int | None = None, most: int | None = None) -> int | None:
        value = self._tree.get(name)
        return None if value is None else check_integer(value, self.at(name), least=least, most=most)

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        value = self.optional_number(name, least=least, most=most)
        return default if value is None else value

    def optional_number(self, name: str, *, least: float, most: float = math.inf) -> float | None:
        value = self._tree.get(name)
        return None if value is None else check_number(value, self.at(name), least=least, most=most)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._tree.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong_type(self.at(name), "a boolean", value)
        return value

    def text(self, name: str, *, max_bytes: int = 2**31) -> str | None:
        value = self._tree.get(name)
        return None if value is None else check_text(value, self.at(name), max_bytes=max_bytes)

    def identifier(self, name: str) -> str | None:
        value = self._tree.get(name)
        return None if value is None else check_identifier(value, self.at(name))

    def choice(self, name: str, kind: type[E], default: E) -> E:
        value = self._tree.get(name)
        return default if value is None else check_choice(value, self.at(name), kind)

    def child(self, name: str) -> Fields | None:
        value = self._tree.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise wrong_type(self.at(name), "an object", value)
        return Fields(value, self.at(name))

    def items(self, name: str, *, most: int) -> list[Any] | None:
        value = self._tree.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise wrong_type(self.at(name), "an array", value)
        if len(value) > most:
            raise Invalid(self.at(name), f"`{self.at(name)}` has {len(value)} items; at most {most} are allowed.")
        return value


class RenamedFields(Fields):
    """An object whose fields have other names with its client: read by ours, told by theirs. `names`: theirs by ours;
    all others are unknown."""

    def __init__(self, tree: dict[str, Any], path: str, names: Mapping[str, str]) -> None:
        super().__init__({ours: tree[theirs] for ours, theirs in names.items() if theirs in tree}, path)
        self.names = names

    def at(self, name: str) -> str:
        return super().at(self.names.get(name, name))


def check_integer(value: Any, path: str, *, least: int | None = None, most: int | None = None) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong_type(path, "an integer", value)
    _check_range(value, path, least, most)
    return value


def check_number(value: Any, path: str, *, least: float, most: float) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise wrong_type(path, "a number", value)
    _check_range(value, path, least, most)
    return float(value)


def check_text(value: Any, path: str, *, max_bytes: int = 2**31) -> str:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    if "\x00" in value:
        raise Invalid(path, f"`{path}` contains a NUL character.")
    if len(value) > max_bytes or (len(value) * 4 > max_bytes and len(value.encode()) > max_bytes):
        raise Invalid(path, f"`{path}` is longer than {max_bytes} bytes.", code="string_above_max_length")
    return value


def check_identifier(value: Any, path: str) -> str:
    """1 to 256 bytes of printable UTF-8 (rule S13). Joiners and spaces count as printable, controls do not."""
    text = check_text(value, path, max_bytes=MAX_ID_BYTES)
    if not text:
        raise Invalid(path, f"`{path}` must not be empty.", code="empty_string")
    if not is_printable(text):
        raise Invalid(path, f"`{path}` contains a control character.")
    return text


def is_printable(text: str) -> bool:
    return all(unicodedata.category(character) not in _UNPRINTABLE for character in text)


def check_choice(value: Any, path: str, kind: type[E]) -> E:
    known = [member.value for member in kind]
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    if value not in known:
        raise Invalid(path, f"`{path}` must be one of {', '.join(map(repr, known))}.")
    return kind(value)


def wrong_type(path: str, wanted: str, value: Any) -> Invalid:
    return Invalid(path, f"`{path}` must be {wanted}, not {_kind(value)}.", code="invalid_type")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    names = {int: "an integer", float: "a number with a fraction or exponent", str: "a string", list: "an array"}
    return names.get(type(value), "an object")


def _check_range(value: float, path: str, least: float | None, most: float | None) -> None:
    if least is not None and value < least:
        raise Invalid(path, f"`{path}` must be at least {_plain(least)}, not {value}.", code="integer_below_min_value")
    if most is not None and value > most:
        raise Invalid(path, f"`{path}` must be at most {_plain(most)}, not {value}.", code="integer_above_max_value")


def _plain(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else str(bound)
