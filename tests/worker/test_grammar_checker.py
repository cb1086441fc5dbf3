"""The child that checks grammars: killing it must never wait for it to be started."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from actors.messages import Grammar, GrammarKind
from actors.worker import grammar_checker
from actors.worker.grammar_checker import CheckTimedOut, GrammarChecker

DIGITS = Grammar(kind=GrammarKind.REGEX, text="[0-9]+")


class SlowStart:
    """Starts children as the checker does, but each only when it is let go; says when it was asked to."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.go = threading.Event()
        self.children: list[subprocess.Popen[bytes]] = []
        self._spawn = grammar_checker._spawn

    def __call__(self) -> subprocess.Popen[bytes]:
        self.asked.set()
        assert self.go.wait(60)
        child = self._spawn()
        self.children.append(child)
        return child


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowStart:
    start = SlowStart()
    monkeypatch.setattr(grammar_checker, "_spawn", start)
    return start


@pytest.fixture
def checker(slow: SlowStart) -> Iterator[GrammarChecker]:
    made = GrammarChecker(time.monotonic)
    yield made
    slow.go.set()
    made.close()
    made.join()


class Checking:
    """A check on a thread of its own, for as long as it is `wanted`."""

    def __init__(self, checker: GrammarChecker) -> None:
        self.wanted = True
        self.result: object = None
        self._checker = checker
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._checker.check(DIGITS, time.monotonic() + 30, lambda: self.wanted)
        except CheckTimedOut as error:
            self.result = error

    def join(self) -> object:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.result


def test_a_kill_does_not_wait_for_a_child_that_is_being_started(checker: GrammarChecker, slow: SlowStart) -> None:
    """A3, A6: the loop kills, and has steps to make; starting a process takes a tenth of a second and more."""
    check = Checking(checker)
    assert slow.asked.wait(60)
    check.wanted = False
    kill = threading.Thread(target=checker.kill)
    kill.start()
    kill.join(60)
    waited = kill.is_alive()
    slow.go.set()
    assert isinstance(check.join(), CheckTimedOut)
    assert not waited


def test_a_child_that_came_too_late_for_its_grammar_checks_the_next(checker: GrammarChecker, slow: SlowStart) -> None:
    check = Checking(checker)
    assert slow.asked.wait(60)
    check.wanted = False
    slow.go.set()
    assert isinstance(check.join(), CheckTimedOut)
    assert checker.check(DIGITS, time.monotonic() + 30, lambda: True).error == ""
    assert len(slow.children) == 1


def test_a_child_that_is_started_while_the_checker_is_closed_is_reaped(slow: SlowStart) -> None:
    checker = GrammarChecker(time.monotonic)
    check = Checking(checker)
    assert slow.asked.wait(60)
    checker.close()
    slow.go.set()
    assert isinstance(check.join(), CheckTimedOut)
    checker.join()
    assert [child.returncode for child in slow.children] == [-signal.SIGKILL]
