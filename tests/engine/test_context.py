"""A long session's turn costs what is new in it: its context is gone on with in place, never copied or hashed again."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import pytest

from actors.engine.context import Context, digest_of
from actors.engine.kv import keys
from actors.engine.kv.cache import KVCache
from actors.engine.kv.keys import PrefixKeys
from actors.engine.kv.pages import PagePool
from tests.engine.driver import Driver, committed, expected

ROOT = b"root"


def test_a_digest_says_what_the_whole_beginning_is() -> None:
    """T4: however much was settled before, it is the digest of all the tokens."""
    context = Context([1, 2, 3])
    for count in (0, 2, 3):
        assert context.digest(count) == digest_of([1, 2, 3][:count])
    context.settle()
    context.tokens += [4, 5]
    assert [context.digest(count) for count in (2, 4, 5)] == [digest_of([1, 2, 3, 4, 5][:n]) for n in (2, 4, 5)]


def test_what_was_not_settled_is_cut_off_with_its_keys() -> None:
    """S2: a turn that went on in a context and was aborted has left nothing in it."""
    context = Context([1, 2, 3, 4, 5])
    context.tokens += [6, 7, 8, 9]
    assert context.keys_under(ROOT, 4).first(2)
    context.cut()
    context.tokens += [60, 70, 80]
    assert context.tokens == [1, 2, 3, 4, 5, 60, 70, 80]
    assert context.keys_under(ROOT, 4).first(2) == PrefixKeys(ROOT, context.tokens, 4).first(2)
    assert context.holds([1, 2, 3, 4, 5])


def test_keys_of_another_namespace_are_computed_anew() -> None:
    """K3: a turn with a salt of its own shares nothing with the turn before it."""
    context = Context([1, 2, 3, 4])
    first = context.keys_under(ROOT, 4)
    assert context.keys_under(ROOT, 4) is first
    assert context.keys_under(b"salted", 4).first(1) == PrefixKeys(b"salted", [1, 2, 3, 4], 4).first(1)


def test_a_turn_after_an_aborted_one_goes_on_from_what_was_committed() -> None:
    """S2, K2: neither the input nor the output of the aborted turn is in what the next one is computed from."""
    driver = Driver(page_size=4)
    driver.open()
    first = driver.turn("a", range(10, 21), 5)
    driver.run()
    dropped = driver.turn("b", range(50, 61), 30)
    for _ in range(4):
        driver.step()
    assert dropped.ids
    driver.abort(rids=("b",))
    last = driver.turn("c", [7, 7], 6)
    driver.run()
    assert committed(first)
    assert committed(last)
    assert last.ids == expected([*range(10, 21), *first.ids, 7, 7], 6)


def test_a_turn_of_a_long_session_hashes_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """K1: a page's key is computed once in the life of its session."""
    hashed: list[int] = []

    def counting(data: bytes = b"", **fields: Any) -> hashlib.blake2b:
        hashed.append(len(data))
        return hashlib.blake2b(data, **fields)

    monkeypatch.setattr(keys, "hashlib", SimpleNamespace(blake2b=counting))
    driver = Driver(page_size=4, kv_tokens=1024, max_context=1000)
    driver.open()
    counts = []
    for number in range(20):
        hashed.clear()
        # The law, which is checked after every verb, hashes everything anew: it is not asked here.
        monkeypatch.setattr("tests.engine.driver.check", lambda engine: None)
        told = driver.turn(f"t{number}", [number] * 12, 8)
        driver.run()
        assert committed(told)
        counts.append(len(hashed))
    new_pages = 20 // 4
    assert max(counts[1:]) <= new_pages + 2, "of its page keys, and of the namespace it is in"


def test_a_turn_of_a_long_session_does_not_count_its_pages_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """K1: what the slot holds stays held as it is while a turn borrows it, and when the turn is committed."""
    moved: list[int] = []
    for name in ("hold_for_request", "drop_by_request", "hold_for_session", "drop_by_session"):
        original = getattr(PagePool, name)

        def counting(pool: PagePool, pages: Any, original: Any = original) -> None:
            listed = list(pages)
            moved.append(len(listed))
            original(pool, listed)

        monkeypatch.setattr(PagePool, name, counting)
    driver = Driver(page_size=4, kv_tokens=1024, max_context=1000)
    driver.open()
    counts = []
    for number in range(20):
        moved.clear()
        driver.turn(f"t{number}", [number] * 12, 8)
        driver.run()
        counts.append(sum(moved))
    assert max(counts[1:]) <= 4 * (20 // 4 + 2)


def test_who_borrows_from_a_slot_that_goes_holds_the_pages_itself() -> None:
    """K6: pages that a turn reads stay its own when its session's slot is dropped, and come back with it."""
    cache = KVCache(12, 4)
    tokens = list(range(10))
    cache.begin(1, PrefixKeys(ROOT, tokens, 4), None)
    assert cache.grow(1, 10)
    cache.keep(1, session=7, length=10)
    cache.release(1)
    assert cache.begin(2, PrefixKeys(ROOT, [*tokens, 1, 2], 4), 7, kept=10) == 10
    assert (cache.counts.session_held, cache.counts.request_owned) == (3, 0)
    cache.drop_slot(7)
    assert (cache.counts.session_held, cache.counts.request_owned) == (0, 3)
    cache.release(2)
    assert cache.counts.free == cache.counts.total
