"""One child process that checks grammars, one after the other, and can be killed at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from actors.messages import Grammar

_LONGEST_LIMIT_S = 1e6
_READ_BYTES = 1 << 16


class CheckTimedOut(Exception):
    """The check took too long, or was killed from outside."""


@dataclass(frozen=True, slots=True)
class Checked:
    """`error`: what is wrong with the grammar, or nothing; then `source` is what to compile. `took_s`: of the
    processor."""

    error: str
    source: str
    took_s: float = 0.0


class GrammarChecker:
    """`check` is called from one thread, `kill` from any. The child is started when needed, and again after a kill."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._latest: subprocess.Popen[bytes] | None = None
        self._closed = False

    def check(self, grammar: Grammar, deadline: float, wanted: Callable[[], bool]) -> Checked:
        """Raises CheckTimedOut when there is no answer by `deadline` (on the clock), or after `kill`.

        `wanted` is False from before `kill` is called, if it is called for this grammar's sake: a kill that comes
        before the child is there would be lost otherwise.
        """
        limit_s = min(deadline - self._clock(), _LONGEST_LIMIT_S)
        if limit_s <= 0:
            raise CheckTimedOut
        process = self._started(wanted)
        ask = {"kind": grammar.kind.value, "text": grammar.text, "limit_s": limit_s}
        try:
            answer = self._exchange(process, json.dumps(ask).encode() + b"\n", deadline)
        except CheckTimedOut:
            self.kill()
            _reap(process)
            raise
        if answer:
            return Checked(**json.loads(answer))
        return self._died(process)

    def kill(self) -> None:
        """End the child, whatever it is doing."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Kill the child for good. `join` once no `check` runs any more."""
        with self._lock:
            self._closed = True
        self.kill()

    def join(self) -> None:
        if self._latest is not None:
            _reap(self._latest)

    def _started(self, wanted: Callable[[], bool]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed or not wanted():
                raise CheckTimedOut
            if self._process is not None and self._process.poll() is None:
                return self._process
        process = _spawn()  # Takes a while. The loop calls `kill`, and must not wait for it.
        with self._lock:
            if not self._closed:
                self._process = self._latest = process
        if self._closed:
            process.kill()
            _reap(process)
            raise CheckTimedOut
        if not wanted():
            raise CheckTimedOut  # The child is kept for the next grammar, unless the kill came after all.
        return process

    def _exchange(self, process: subprocess.Popen[bytes], ask: bytes, deadline: float) -> bytes:
        """Its answer, without the end of line; nothing if it died."""
        if process.stdin is None or process.stdout is None:
            raise AssertionError("the child has pipes")
        try:
            process.stdin.write(ask)
            process.stdin.flush()
        except OSError:
            return b""
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        answer = b""
        while not answer.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - self._clock()) * 1000):
                raise CheckTimedOut
            part = os.read(process.stdout.fileno(), _READ_BYTES)
            if not part:
                return b""
            answer += part
        return answer

    def _died(self, process: subprocess.Popen[bytes]) -> Checked:
        """Killed by us or by its own alarm: too slow. By anything else: the grammar was too much for it."""
        status = _reap(process)
        with self._lock:
            if self._process is process:
                self._process = None
        if status in (-signal.SIGKILL, -signal.SIGALRM, -signal.SIGTERM):
            raise CheckTimedOut
        return Checked(error="it is too complex to be compiled", source="")


def _reap(process: subprocess.Popen[bytes]) -> int:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # What was still to be written to a dead child.
                pipe.close()
    return process.wait()


def _spawn() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-m", "actors.runner.grammar.check"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
