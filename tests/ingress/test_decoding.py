"""A reply's text as callers want it: with its control tokens, with the stop string that ended it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.ingress.decoding import USUAL, Decoding, decoder_for
from actors.ingress.text import TextModel
from actors.ingress.toy_text import toy_text

END = 257
"""A control token of this model's; it has no text of its own."""


@pytest.fixture
def text() -> TextModel:
    toy = toy_text()
    return replace(toy, token_bytes=lambda token: b"<end>" if token == END else toy.token_bytes(token))


def told(text: TextModel, ids: list[int], stop: tuple[str, ...], decoding: Decoding, matched: str | None) -> list[str]:
    """What each id adds, and the end."""
    decoder = decoder_for(text, stop, decoding)
    return [*(decoder.push([token]) for token in ids), decoder.finish(matched)]


def test_control_tokens_have_no_text_unless_asked_for(text: TextModel) -> None:
    ids = [*b"ab", END, *b"c"]
    assert "".join(told(text, ids, (), USUAL, None)) == "abc"
    assert told(text, ids, (), Decoding(controls=True), None) == ["a", "b", "<end>", "c", ""]


def test_a_stop_string_is_never_shown_unless_asked_for(text: TextModel) -> None:
    """I2: not a part of it either, until it is known to be none."""
    ids = list(b"abEND")
    for controls in (True, False):
        assert "".join(told(text, ids, ("END",), Decoding(controls=controls), "END")) == "ab"
        kept = told(text, ids, ("END",), Decoding(controls=controls, keeps_stop=True), "END")
        assert kept == ["a", "b", "E", "N", "D", ""]


def test_a_stop_string_that_a_control_token_interrupts_is_not_cut(text: TextModel) -> None:
    """It ended the reply, as the engine sees no text in control tokens; as it is told, it is not there."""
    ids = [*b"abEN", END, *b"D"]
    assert "".join(told(text, ids, ("END",), Decoding(controls=True), "END")) == "abEN<end>D"


def test_characters_wait_for_all_their_bytes(text: TextModel) -> None:
    """I2."""
    pieces = told(text, [*"日".encode(), END], (), Decoding(controls=True), None)
    assert pieces == ["", "", "日", "<end>", ""]
