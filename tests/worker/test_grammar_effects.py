"""Compiling off the loop, with the real library in real child processes: bounded, cached, cancelled."""

from __future__ import annotations

import itertools
import json
import os
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actors.engine.effects import CompileGrammar, GrammarReady, ReleaseGrammar
from actors.messages import Grammar, GrammarKind
from actors.runner.toy import ToyRunner
from actors.worker.grammar_effects import MAX_CACHED, GrammarEffects

SMALL = Grammar(kind=GrammarKind.REGEX, text="[ab]{3}")
WRONG = Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps({"type": "integer", "unevaluatedProperties": False}))


def slow(number: int = 0) -> Grammar:
    """A schema that takes the library many seconds."""
    values = [{"a": n, "b": [n] * 10} for n in range(60_000)]
    return Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps({"title": str(number), "enum": values}))


class Bench:
    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.mail: queue.Queue[GrammarReady] = queue.Queue()
        self.matchers = ToyRunner().matchers
        assert self.matchers is not None
        self.effects = GrammarEffects(self.matchers, self.mail.put, timeout_s=timeout_s, clock=clock)

    def ask(self, uid: int, grammar: Grammar) -> None:
        self.effects.perform(CompileGrammar(uid=uid, grammar=grammar))

    def release(self, uid: int) -> None:
        self.effects.perform(ReleaseGrammar(uid=uid))

    def hear(self, within_s: float = 20.0) -> GrammarReady:
        return self.mail.get(timeout=within_s)

    def children(self) -> list[int]:
        """Pids of checking processes."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                    command = (entry / "cmdline").read_bytes()
                except OSError:  # It has ended since the folder was listed.
                    continue
                if int(fields[1]) == os.getpid() and fields[0] != "Z" and b"grammar.check" in command:
                    found.append(int(entry.name))
        return found


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(timeout_s: float = 20.0, clock: Callable[[], float] = time.monotonic) -> Bench:
        made.append(Bench(timeout_s, clock))
        return made[-1]

    yield make
    for one in made:
        one.effects.close()
        assert not one.children()


def until(holds: Callable[[], bool], within_s: float) -> float:
    """Seconds until it held."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < within_s, "in vain"
        time.sleep(0.01)
    return time.monotonic() - began


def test_a_grammar_is_compiled_once_and_copied_for_each_request(bench: Callable[..., Bench]) -> None:
    at = bench()
    for uid in (1, 2):
        at.ask(uid, SMALL)
    assert {at.hear(), at.hear()} == {GrammarReady(uid=1), GrammarReady(uid=2)}
    began = time.monotonic()
    at.ask(3, SMALL)
    assert at.hear() == GrammarReady(uid=3)
    assert time.monotonic() - began < 0.5
    assert at.matchers is not None
    assert not at.matchers.allowed(1, b"aab")[ord("a")]
    assert at.matchers.allowed(2, b"aa")[ord("a")]
    for uid in (1, 2, 3):
        at.release(uid)
    assert len(at.matchers) == 0


def test_an_invalid_grammar_is_known_as_such_the_second_time(bench: Callable[..., Bench]) -> None:
    """G01."""
    at = bench()
    at.ask(1, WRONG)
    first = at.hear()
    assert "unevaluatedProperties" in first.error
    assert not first.timed_out
    children = at.children()
    began = time.monotonic()
    at.ask(2, WRONG)
    assert at.hear() == GrammarReady(uid=2, error=first.error)
    assert time.monotonic() - began < 0.5
    assert at.children() == children


def test_a_timeout_is_told_in_time_and_forgotten(bench: Callable[..., Bench]) -> None:
    """W23, T10, N65: the child is gone, and the same grammar is tried anew."""
    at = bench(0.7)
    for uid in (1, 2):
        began = time.monotonic()
        at.ask(uid, slow())
        answer = at.hear(60.0)
        assert (answer.uid, answer.timed_out) == (uid, True)
        assert 0.5 < time.monotonic() - began < 30.0, "a busy machine may be late, but not for as long as it compiles"
        until(lambda: not at.children(), 60.0)


def test_a_small_grammar_that_timed_out_behind_bombs_succeeds_later(bench: Callable[..., Bench]) -> None:
    """T10, N65: a timeout says nothing about the grammar."""
    at = bench(1.0)
    for uid in (1, 2):
        at.ask(uid, slow(uid))
    at.ask(3, SMALL)
    answers = {answer.uid: answer for answer in (at.hear(), at.hear(), at.hear())}
    assert answers[1].timed_out
    assert answers[2].timed_out
    again = answers[3]
    while again.timed_out:  # Pushed aside by the bombs, or only just not.
        at.ask(3, SMALL)
        again = at.hear()
    assert again == GrammarReady(uid=3)


def test_a_grammar_nobody_waits_for_is_killed(bench: Callable[..., Bench]) -> None:
    """A12, N65: CPU is back within a second of the disconnect; of two that wait, one may go."""
    at = bench()
    at.ask(1, slow())
    at.ask(2, slow())
    until(lambda: bool(at.children()), 5.0)
    at.release(1)
    assert at.effects.compiling == 1
    assert at.children()
    at.release(2)
    assert at.effects.compiling == 0
    until(lambda: not at.children(), 1.0)
    assert at.mail.empty()
    at.ask(3, SMALL)
    assert at.hear() == GrammarReady(uid=3)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(kind=GrammarKind.EBNF, text="root ::= root"),
        Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}'),
        Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"type": "array", "maxItems": 18446744073709551616}'),
        Grammar(kind=GrammarKind.JSON_SCHEMA, text="{" * 5000),
        Grammar(kind=GrammarKind.EBNF, text="root ::= " + "(" * 20_000),
        Grammar(kind=GrammarKind.REGEX, text="a|("),
        Grammar(kind=GrammarKind.EBNF, text=""),
    ],
    ids=["loop", "ref-cycle", "max-items", "brackets", "parentheses", "regex", "empty"],
)
def test_bombs_and_nonsense_are_invalid(bench: Callable[..., Bench], grammar: Grammar) -> None:
    """N65, I1: nothing of it crashes, hangs or runs without its constraint."""
    at = bench()
    at.ask(1, grammar)
    answer = at.hear()
    assert answer.error.startswith("the grammar cannot be used")
    assert not answer.timed_out
    assert len(answer.error) < 500


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(kind=GrammarKind.REGEX, text="[ab]*a[ab]{25}"),
        Grammar(kind=GrammarKind.REGEX, text="(a{1,1000}){1,1000}"),
        Grammar(kind=GrammarKind.JSON_SCHEMA, text='{"type": "array", "maxItems": 18446744073709551615}'),
    ],
    ids=["nfa", "counted", "max-items"],
)
def test_what_only_looks_like_a_bomb_is_compiled(bench: Callable[..., Bench], grammar: Grammar) -> None:
    """N65."""
    at = bench()
    at.ask(1, grammar)
    assert at.hear() == GrammarReady(uid=1)


def test_the_cache_is_bounded(bench: Callable[..., Bench]) -> None:
    at = bench()
    for uid in range(MAX_CACHED + 5):
        at.ask(uid, Grammar(kind=GrammarKind.REGEX, text=f"a{uid}"))
        assert at.hear() == GrammarReady(uid=uid)
    assert len(at.effects._known) == MAX_CACHED


def test_a_machine_that_is_slow_says_nothing_of_a_grammar(bench: Callable[..., Bench]) -> None:
    """N65: what counts is what the check costs, not how long its process waits for a processor."""
    hours = itertools.count(0.0, 3600.0)
    at = bench(1e6, clock=lambda: next(hours))
    at.ask(1, SMALL)
    assert at.hear(60.0) == GrammarReady(uid=1)
