"""Messages as msgpack: `[schema, kind, field, field, …]`, token ids as packed little-endian int32.

A reader takes the fields it knows: missing ones get their defaults, extra ones at the end are ignored.
"""

from __future__ import annotations

import dataclasses
import operator
import sys
import types
import typing
from array import array
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import msgpack

from actors import messages
from actors.messages import Event, TokenIds

SCHEMA = 1

_KINDS: dict[int, type] = {
    1: messages.Submit,
    2: messages.Abort,
    3: messages.OpenSession,
    4: messages.CloseSession,
    5: messages.GetSession,
    6: messages.FlushCache,
    7: messages.IngressLost,
    8: messages.Shutdown,
    9: messages.ForkSession,
    10: messages.RollbackSession,
    11: messages.Drain,
    12: messages.LeaveSession,
    13: messages.ReceiveSession,
    14: messages.Pause,
    15: messages.Resume,
    20: messages.Tokens,
    21: messages.Finished,
    22: messages.Reply,
    30: messages.SessionInfo,
    31: messages.SessionClosed,
    32: messages.AbortReport,
    33: messages.AbortHit,
    34: messages.SessionRolledBack,
    35: messages.SessionLeft,
    40: messages.SamplingParams,
    41: messages.TurnOf,
    42: messages.Grammar,
    43: messages.Notation,
}
_KIND_OF = {cls: kind for kind, cls in _KINDS.items()}


class WireError(ValueError):
    """Bytes that are not a message of a schema this reader knows."""


def encode(message: object) -> bytes:
    """One message as bytes."""
    return typing.cast(bytes, msgpack.packb([SCHEMA, *_pack(message)]))


def decode(data: bytes) -> Any:
    """The inverse of `encode`. Raises WireError."""
    values = _unpacked(data)
    return _unpack(values)


def encode_frame(number: int, events: Iterable[Event]) -> bytes:
    """A step's events for one ingress. `number` counts frames of one (worker, ingress) pair from 1."""
    return typing.cast(bytes, msgpack.packb([SCHEMA, number, [_pack(event) for event in events]]))


def decode_frame(data: bytes) -> tuple[int, list[Event]]:
    """(number, events). Raises WireError."""
    number, packed = _unpacked(data)
    return number, [_unpack(values) for values in packed]


def pack_ids(ids: TokenIds) -> bytes:
    """Token ids as little-endian int32."""
    packed = array("i", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(data: bytes) -> TokenIds:
    ids = array("i")
    ids.frombytes(data)
    if sys.byteorder == "big":
        ids.byteswap()
    return tuple(ids)


def _unpacked(data: bytes) -> list[Any]:
    try:
        schema, *rest = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"not a message: {error}") from error
    if schema != SCHEMA:
        raise WireError(f"message of schema {schema}; this reader knows {SCHEMA}")
    return typing.cast("list[Any]", rest)


def _pack(message: object) -> list[Any]:
    packer = _PACKERS.get(type(message))
    if packer is None:
        raise WireError(f"{type(message).__name__} does not cross actor boundaries")
    kind, read, converted = packer
    values = [kind, *read(message)]
    for place, pack in converted:
        values[place] = pack(values[place])
    return values


def _unpack(values: list[Any]) -> Any:
    kind, *packed = values
    cls = _KINDS.get(kind)
    if cls is None:
        raise WireError(f"message of unknown kind {kind}")
    known = {name: unpack(value) for (name, _, unpack), value in zip(_FIELDS[cls], packed, strict=False)}
    return cls(**known)


Convert = Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _pack_any(value: Any) -> Any:
    return ["message", _pack(value)] if type(value) in _KIND_OF else ["plain", value]


def _unpack_any(pair: list[Any]) -> Any:
    return _unpack(pair[1]) if pair[0] == "message" else pair[1]


def _converters(hint: Any) -> tuple[Convert, Convert]:
    """(pack, unpack) for a field's type."""
    if hint is object:
        return _pack_any, _unpack_any
    if hint == TokenIds:
        return pack_ids, unpack_ids
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        pack, unpack = _converters(next(arg for arg in args if arg is not type(None)))
        return (
            lambda value: None if value is None else pack(value),
            lambda value: None if value is None else unpack(value),
        )
    if origin is tuple:
        if len(args) == 2 and args[1] is Ellipsis:
            pack, unpack = _converters(args[0])
            return (lambda value: [pack(v) for v in value], lambda value: tuple(unpack(v) for v in value))
        return list, tuple
    if isinstance(hint, type) and issubclass(hint, Enum):
        return (lambda value: value.value, hint)
    if dataclasses.is_dataclass(hint):
        return _pack, _unpack
    return _same, _same


def _fields(cls: type) -> tuple[tuple[str, Convert, Convert], ...]:
    hints = typing.get_type_hints(cls)
    return tuple((field.name, *_converters(hints[field.name])) for field in dataclasses.fields(cls))


_FIELDS = {cls: _fields(cls) for cls in _KINDS.values()}


def _packer(cls: type) -> tuple[int, Callable[[Any], tuple[Any, ...]], list[tuple[int, Convert]]]:
    """(kind, what reads all fields at once, which of the values behind the kind are not told as they are)."""
    fields = _FIELDS[cls]
    converted = [(place, pack) for place, (_, pack, _) in enumerate(fields, 1) if pack is not _same]
    return _KIND_OF[cls], _reader([name for name, _, _ in fields]), converted


def _reader(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    return lambda message: tuple(getattr(message, name) for name in names)


_PACKERS = {cls: _packer(cls) for cls in _KIND_OF}
