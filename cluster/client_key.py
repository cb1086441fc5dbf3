"""The key that `remora chat` and `remora status` show a server that asks for one. From the environment only: a command
line is seen by everybody on the machine."""

from __future__ import annotations

from collections.abc import Mapping

KEY_VARIABLE = "REMORA_API_KEY"


def key_header(environ: Mapping[str, str]) -> dict[str, str]:
    """The header that carries the key; none without one."""
    key = environ.get(KEY_VARIABLE, "")
    return {"authorization": f"Bearer {key}"} if key else {}
