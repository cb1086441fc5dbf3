"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Hermes, Qwen 2.5, Qwen 3 and many more write it. Pure."""

from __future__ import annotations

from actors.replies.call_object import BLANKS, CallObject
from actors.replies.calls import ObjectReader, undecided

BEGINS = "<tool_call>"
ENDS = "</tool_call>"


class HermesReader(ObjectReader):
    def __init__(self) -> None:
        super().__init__(BEGINS)

    def _enter(self, raw: str) -> None:
        super()._enter(raw)
        self._start(CallObject())

    def _around(self, *, final: bool) -> bool:
        """Behind the object. Small models write a brace too many, or forget one."""
        rest = self._text.lstrip(BLANKS + "}")
        if rest.startswith(ENDS):
            self._text = rest[len(ENDS) :]
            return self._leave()
        if undecided(rest, (ENDS,)) and not final:
            return False
        return self._leave()
