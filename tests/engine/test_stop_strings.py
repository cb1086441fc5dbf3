from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.engine.stop_strings import StopStrings

STOPS = st.lists(st.text("abé", max_size=5), max_size=5)
CHUNKS = st.lists(st.text("abé", max_size=4).map(str.encode), max_size=20)


def first_match(text: bytes, stops: list[str]) -> tuple[int, str] | None:
    """(end, stop string): the earliest end, and of those the longest, by looking at every end."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop.encode())]
        if ending:
            return end, max(ending, key=lambda stop: len(stop.encode()))
    return None


@settings(deadline=None)
@given(STOPS, CHUNKS)
def test_the_first_complete_stop_string_is_found_in_the_chunk_that_completes_it(
    stops: list[str], chunks: list[bytes]
) -> None:
    matcher = StopStrings(stops)
    expected = first_match(b"".join(chunks), stops)
    length = 0
    for chunk in chunks:
        found = matcher.push(chunk)
        length += len(chunk)
        if expected is None or expected[0] > length:
            assert found is None
            assert matcher.tail == 0
        else:
            assert found == expected[1]
            assert matcher.tail == length - (expected[0] - len(expected[1].encode()))
            return


@settings(deadline=None)
@given(STOPS, CHUNKS)
def test_held_is_the_longest_ending_that_begins_a_stop_string(stops: list[str], chunks: list[bytes]) -> None:
    matcher = StopStrings(stops)
    text = b""
    prefixes = {stop.encode()[:length] for stop in stops for length in range(len(stop.encode()) + 1)}
    for chunk in chunks:
        matcher.push(chunk)
        text += chunk
        assert matcher.held == max((len(p) for p in prefixes if text.endswith(p)), default=0)


@settings(deadline=None)
@given(STOPS, CHUNKS, CHUNKS)
def test_matches_after_an_ignored_one_are_found_too(stops: list[str], before: list[bytes], after: list[bytes]) -> None:
    """Every chunk that completes a stop string says so, whatever came before."""
    matcher = StopStrings(stops)
    text = b""
    for chunk in [*before, *after]:
        start = len(text)
        text += chunk
        ends = [
            end for end in range(start + 1, len(text) + 1) if any(s and text[:end].endswith(s.encode()) for s in stops)
        ]
        assert (matcher.push(chunk) is not None) == bool(ends)


def test_the_longest_of_those_that_end_together_wins() -> None:
    assert StopStrings(["b", "ab", "aab"]).push(b"xaab") == "aab"


def test_an_earlier_end_wins_over_an_earlier_start() -> None:
    assert StopStrings(["abcd", "bc"]).push(b"abcd") == "bc"


def test_a_stop_string_may_be_split_inside_a_character() -> None:
    matcher = StopStrings(["a€"])
    data = "a€".encode()
    assert [matcher.push(data[i : i + 1]) for i in range(len(data))] == [None, None, None, "a€"]


def test_empty_and_unmatchable_strings_do_no_harm() -> None:
    """I1: lone surrogates are not text; an empty string ends nothing."""
    matcher = StopStrings(["", "\ud83d"])
    assert matcher.push("🎉 text".encode()) is None
    assert matcher.held == 0


def test_cost_does_not_grow_with_the_number_of_stop_strings() -> None:
    """A hostile set of strings (all share long prefixes with the text) stays linear in the text."""
    stops = ["a" * n + "b" for n in range(1, 200)]
    text = b"a" * 20_000
    matcher = StopStrings(stops)
    start = time.process_time()
    assert matcher.push(text) is None
    assert time.process_time() - start < 2.0
