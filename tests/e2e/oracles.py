"""What a session's history must be, as lists of token ids: all of them for the toy, the prompts' for a real model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from actors.ingress.text import TextModel
from actors.runner.toy import toy_continuation

UNKNOWN = -1
"""Stands for a token that only the model can know."""


class Oracle(Protocol):
    """`options`: fields of a body that make a turn as long as was asked."""

    def options(self, max_tokens: int) -> dict[str, Any]: ...

    def prompt(self, base: list[int], text: str, *, named: bool) -> list[int]:
        """The prompt that a user's message makes after `base`. `named`: the turn names its parent."""

    def output(self, prompt: list[int], num_tokens: int) -> list[int]:
        """What follows the prompt."""

    def agrees(self, prompt: list[int], text: str, num_tokens: int) -> bool:
        """Whether `text` may be the answer to it."""


class ToyOracle:
    """The toy runner's text is a pure function of the prompt, one token per byte."""

    def options(self, max_tokens: int) -> dict[str, Any]:
        return {}

    def prompt(self, base: list[int], text: str, *, named: bool) -> list[int]:
        line = f"user: {text}\nassistant: ".encode()
        close = b"" if not base or base[-1] == ord("\n") else b"\n"
        return [*base, *close, *line]

    def output(self, prompt: list[int], num_tokens: int) -> list[int]:
        return list(_toy_output(tuple(prompt), num_tokens))

    def agrees(self, prompt: list[int], text: str, num_tokens: int) -> bool:
        return num_tokens == len(text) and self.output(prompt, len(text)) == list(text.encode())


@lru_cache(maxsize=4096)
def _toy_output(prompt: tuple[int, ...], num_tokens: int) -> tuple[int, ...]:
    return tuple(toy_continuation(list(prompt), num_tokens))


@dataclass
class ModelOracle:
    """A real model: prompts are known but for earlier outputs, of which the lengths are. The model is kept from ending
    by itself, so that a turn is as long as it was asked to be."""

    text_model: TextModel

    def __post_init__(self) -> None:
        self._root = lru_cache(maxsize=4096)(self._render_root)
        self._turn = lru_cache(maxsize=4096)(self._render_turn)

    def options(self, max_tokens: int) -> dict[str, Any]:
        return {"min_tokens": max_tokens}

    def prompt(self, base: list[int], text: str, *, named: bool) -> list[int]:
        if not base and not named:
            return list(self._root(text))
        close, new = self._turn(text)
        missing = close if base and tuple(base[-len(close) :]) != close else ()
        return [*base, *missing, *new]

    def output(self, prompt: list[int], num_tokens: int) -> list[int]:
        return [UNKNOWN] * num_tokens

    def agrees(self, prompt: list[int], text: str, num_tokens: int) -> bool:
        return True

    def _render_root(self, text: str) -> Sequence[int]:
        return self.text_model.template.render_root(_user(text))

    def _render_turn(self, text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        turn = self.text_model.template.render_turn(_user(text))
        return tuple(turn.close_ids), tuple(turn.input_ids)


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
