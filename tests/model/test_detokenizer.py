from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engine.stop_strings import StopStrings
from actors.model.detokenizer import Detokenizer

PIECES = (b"", b"a", b"b", b"ab", b" c", "é".encode(), "€".encode()[:1], "€".encode()[1:], "🎉".encode()[:2],
          "🎉".encode()[2:], b"\xff", b"\xed\xa0\x80", b"\xc3", b"\xf4\x90", "€a🎉".encode())  # fmt: skip
IDS = st.lists(st.integers(0, len(PIECES) - 1), max_size=30)
STOPS = st.lists(st.text("ab€🎉é ", min_size=1, max_size=4), max_size=3)


def whole(ids: list[int]) -> str:
    return b"".join(PIECES[i] for i in ids).decode("utf-8", "replace")


def chunks_of(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[start:end] for start, end in itertools.pairwise(edges)]


@settings(deadline=None)
@given(IDS, STOPS, st.lists(st.integers(0, 40), max_size=10))
def test_deltas_add_up_to_the_whole_text_however_they_are_cut(
    ids: list[int], stops: list[str], cuts: list[int]
) -> None:
    """I2: concatenated deltas equal the unary text, and every one is valid UTF-8."""
    detokenizer = Detokenizer(PIECES, stops)
    deltas = [detokenizer.push(chunk) for chunk in chunks_of(ids, cuts)] + [detokenizer.finish(None)]
    for delta in deltas:
        delta.encode()
    assert "".join(deltas) == whole(ids)


@settings(deadline=None)
@given(IDS, STOPS)
def test_text_is_cut_before_the_stop_string_that_ended_the_reply(ids: list[int], stops: list[str]) -> None:
    """I2: a stop string split over tokens is held back and never shown."""
    matcher, detokenizer = StopStrings(stops), Detokenizer(PIECES, stops)
    seen: list[int] = []
    text = ""
    matched = None
    for token in ids:
        seen.append(token)
        text += detokenizer.push([token])
        matched = matcher.push(PIECES[token])
        if matched is not None:
            break
    text += detokenizer.finish(matched)
    if matched is None:
        assert text == whole(ids)
    else:
        # The first stop string to be complete: no shorter text holds any.
        data = b"".join(PIECES[i] for i in seen)
        end = min(data.find(stop.encode()) + len(stop.encode()) for stop in stops if stop.encode() in data)
        start = min(end - len(stop.encode()) for stop in stops if data[:end].endswith(stop.encode()))
        assert text == data[:start].decode("utf-8", "replace")


@settings(deadline=None)
@given(IDS, STOPS)
def test_no_text_waits_that_could_be_shown(ids: list[int], stops: list[str]) -> None:
    """I2: what is held back is an incomplete character, or could become (or just became) a stop string."""
    detokenizer = Detokenizer(PIECES, stops)
    shown = "".join(detokenizer.push([token]) for token in ids)
    held = whole(ids)[len(shown) :]
    core = held.strip("�")  # broken characters on both sides wait for the text between
    may_be_stop = any(core.startswith(stop) or stop.startswith(core) for stop in stops)
    assert len(held) <= 1 or may_be_stop


def test_a_match_that_did_not_end_the_reply_is_shown_when_more_follows() -> None:
    """`min_tokens` lets the engine go on after a stop string."""
    detokenizer = Detokenizer((b"x", b"STOP", b"y"), ["STOP"])
    assert detokenizer.push([0, 1]) == "x"
    assert detokenizer.push([2]) == "STOPy"
    assert detokenizer.push([1]) == ""
    assert detokenizer.finish("STOP") == ""


def test_a_partial_stop_string_is_shown_at_the_end() -> None:
    detokenizer = Detokenizer((b"a", b"<", b"/"), ["</s>"])
    assert detokenizer.push([0, 1, 2]) == "a"
    assert detokenizer.finish(None) == "</"


def test_an_unfinished_character_at_the_end_becomes_a_replacement_character() -> None:
    detokenizer = Detokenizer(("🎉".encode()[:3],))
    assert detokenizer.push([0]) == ""
    assert detokenizer.finish() == "�"


def test_ids_outside_the_vocabulary_have_no_text() -> None:
    """I1: a padded row of the embedding may be sampled; it must not crash the reply."""
    detokenizer = Detokenizer((b"a",))
    assert detokenizer.push([0, 1, 99, -1, 0]) == "aa"


def test_tokens_after_the_end_are_refused() -> None:
    """E1: no token event follows the end."""
    detokenizer = Detokenizer((b"a",))
    detokenizer.finish()
    with pytest.raises(RuntimeError, match="after the end"):
        detokenizer.push([0])


def test_a_stop_string_that_is_not_there_is_an_error() -> None:
    detokenizer = Detokenizer((b"a",), ["b"])
    detokenizer.push([0])
    with pytest.raises(ValueError, match="does not end with"):
        detokenizer.finish("b")
