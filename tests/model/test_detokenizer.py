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


MARKED = [*(bytes([byte]) for byte in range(256)), b"", b""]
MARKS = {256: "<|python_tag|>"}


def decoded(ids: list[int], cuts: list[int], stop: list[str], matched: str | None) -> str:
    decoder = Detokenizer(MARKED, stop, MARKS)
    text = ""
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        text += decoder.push(ids[start:end])
    return text + decoder.finish(matched)


def test_a_control_token_that_is_asked_for_is_shown_where_it_stands() -> None:
    """I2: no other is; a character that it interrupts is none."""
    ids = [*"aé".encode(), 256, *b"b", 257, *"é".encode()[:1], 256, *"é".encode()[1:]]
    tag = MARKS[256]
    assert decoded(ids, [], [], None) == f"aé{tag}b\N{REPLACEMENT CHARACTER}{tag}\N{REPLACEMENT CHARACTER}"
    assert Detokenizer(MARKED).push(ids[:5]) == "aéb"


def test_a_shown_control_token_is_no_part_of_a_stop_string() -> None:
    """I2: the engine's verdict does not know of it: a match may go around it, and none goes through its letters."""
    tag = MARKS[256]
    around = [*b"call: ", 256, *b"ST", 256, *b"OP"]
    assert decoded(around, [], ["STOP"], "STOP") == f"call: {tag}"
    assert decoded([*b"a", 256, *b"b"], [1, 2], ["python", "<|"], None) == f"a{tag}b"
    assert decoded([*b"aST", 256, *b"x"], [1, 3, 4], ["STOP"], None) == f"aST{tag}x"


@settings(deadline=None)
@given(
    ids=st.lists(st.one_of(st.sampled_from([256, 257, *b"STOP<|"]), st.integers(0, 257)), max_size=20),
    data=st.data(),
)
def test_shown_control_tokens_do_not_depend_on_the_pieces(ids: list[int], data: st.DataObject) -> None:
    """I2."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    for stop in ([], ["STOP", "T<"]):
        whole = decoded(ids, [], stop, None)
        assert decoded(ids, cuts, stop, None) == whole
        assert decoded(ids, list(range(len(ids))), stop, None) == whole
        assert whole.count(MARKS[256]) >= ids.count(256)
