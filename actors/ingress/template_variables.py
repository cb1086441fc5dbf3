"""Variables that a client sets in the model's chat template. Pure."""

from __future__ import annotations

from typing import Any

import orjson

from actors.ingress.errors import Invalid
from actors.ingress.validate import Fields

MAX_VARIABLES = 64
MAX_BYTES = 16 * 2**10
_OURS = frozenset(
    {
        *("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"),
        *("bos_token", "eos_token", "unk_token", "pad_token", "raise_exception", "strftime_now"),
    }
)
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_NAME = "chat_template_kwargs"


def read_variables(fields: Fields) -> dict[str, Any]:
    """`chat_template_kwargs`, and `reasoning_effort` as a variable: templates that know neither ignore them. Raises
    Invalid naming the field."""
    variables = _effort(fields)
    child = fields.child(_NAME)
    if child is None:
        return variables
    given: dict[str, Any] = fields.raw(_NAME)
    if len(given) > MAX_VARIABLES:
        raise Invalid(_NAME, f"`{_NAME}` has {len(given)} entries; at most {MAX_VARIABLES} are taken.")
    for name in given:
        at = f"{_NAME}.{name[:64]}"
        if not (name.isascii() and name.isidentifier()):
            raise Invalid(at, f"`{at}` is no name of a variable.")
        if name in _OURS:
            raise Invalid(at, f"`{at}` is not for requests to set.", code="unsupported_value")
    if len(orjson.dumps(given)) > MAX_BYTES:
        raise Invalid(_NAME, f"`{_NAME}` is longer than {MAX_BYTES} bytes.", code="string_above_max_length")
    return {**variables, **given}


def _effort(fields: Fields) -> dict[str, Any]:
    effort = fields.text("reasoning_effort", max_bytes=64)
    if effort is None:
        return {}
    if effort not in _EFFORTS:
        raise Invalid("reasoning_effort", f"`reasoning_effort` must be one of {', '.join(map(repr, _EFFORTS))}.")
    return {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
