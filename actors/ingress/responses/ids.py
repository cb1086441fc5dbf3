"""Names of responses and conversations, and of the sessions behind them. Pure.

A response's id carries the name of its session, so that nobody has to remember it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from enum import Enum

from actors.ingress.errors import Invalid

RESPONSE = "resp_"
CONVERSATION = "conv_"
RESERVED = (RESPONSE, CONVERSATION)
"""What names of sessions begin with that only this API opens."""

_TOKEN = "[0-9a-f]{24}"
_RESPONSE_ID = re.compile(f"{RESPONSE}([rcs])({_TOKEN})({_TOKEN})")
_CONVERSATION_ID = re.compile(f"{CONVERSATION}{_TOKEN}")


class Kind(str, Enum):
    """`CHAIN`: of responses that name their predecessor. `CONVERSATION`: in one. `STATELESS`: not stored."""

    CHAIN = "r"
    CONVERSATION = "c"
    STATELESS = "s"


@dataclass(frozen=True, slots=True)
class ResponseId:
    """`chain` names the session: that of a chain is called after its first response. `own` is this response's."""

    kind: Kind
    chain: str
    own: str

    def __str__(self) -> str:
        return f"{RESPONSE}{self.kind.value}{self.chain}{self.own}"

    @property
    def session_id(self) -> str:
        prefix = CONVERSATION if self.kind is Kind.CONVERSATION else RESPONSE
        return f"{prefix}{self.chain}"

    @staticmethod
    def parse(text: str) -> ResponseId | None:
        found = _RESPONSE_ID.fullmatch(text)
        return None if found is None else ResponseId(Kind(found[1]), found[2], found[3])


def new_token() -> str:
    return secrets.token_hex(12)


def token_of(key: str) -> str:
    """The same for the same Idempotency-Key: a request sent again means the same response (rule T2)."""
    return hashlib.blake2b(key.encode(), digest_size=12, person=b"response").hexdigest()


def is_conversation(text: str) -> bool:
    return _CONVERSATION_ID.fullmatch(text) is not None


def token_of_conversation(conversation_id: str) -> str:
    return conversation_id.removeprefix(CONVERSATION)


def check_own_session(session_id: str, path: str) -> None:
    """For a session that a caller names: raises Invalid for what only this API names."""
    if session_id.startswith(RESERVED):
        names = " and ".join(map(repr, RESERVED))
        raise Invalid(path, f"`{path}` may not begin with {names}: those sessions belong to the Responses API.")
