"""`{"name": …, "parameters": {…}}` as the whole reply, or behind `<|python_tag|>`: Llama 3.1, 3.2, 3.3. Pure.

A reply may be JSON without being a call: only an object that names one of the tools is taken for one. Several calls are
divided by `;`.
"""

from __future__ import annotations

from collections.abc import Collection

from actors.replies.call_object import BLANKS, CallObject
from actors.replies.calls import ObjectReader, undecided

PYTHON_TAG = "<|python_tag|>"


class LlamaReader(ObjectReader):
    def __init__(self, names: Collection[str]) -> None:
        super().__init__(PYTHON_TAG)
        self._names = names
        self._in_call = True  # The reply itself may be one.

    def _enter(self, raw: str) -> None:
        super()._enter(raw)
        self._start(CallObject(self._names))

    def _around(self, *, final: bool) -> bool:
        """At the beginning, or behind a call: is there (another) one?"""
        divides = self._number > 0
        rest = self._text.lstrip(BLANKS)
        if divides and rest.startswith(";"):
            rest = rest[1:].lstrip(BLANKS)
        if (not rest or undecided(rest, (PYTHON_TAG,))) and not final:
            return False
        before = self._text[: len(self._text) - len(rest)]
        for begins in (PYTHON_TAG, "{"):
            if rest.startswith(begins):
                taken = len(before) + (len(begins) if begins == PYTHON_TAG else 0)
                self._enter(self._text[:taken])
                self._text = self._text[taken:]
                return True
        self._in_call, self._called = False, divides
        return True
