"""Compiles grammars off the loop: in a bounded pool, within a time limit, each once, and no longer than anybody waits.

A grammar is first checked in a child process, which can be killed; what passes is compiled here as well, which takes
as long once more. What was found out is kept by (kind, text): matchers to copy, and errors. A timeout says nothing
about the grammar and is not kept.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from actors.engine.effects import CompileGrammar, GrammarReady, ReleaseGrammar
from actors.messages import Grammar
from actors.runner.grammar.matchers import GrammarError, Matchers
from actors.worker.grammar_checker import CheckTimedOut, GrammarChecker

logger = logging.getLogger("remora.worker")

MAX_CHECK_S = 2.0
"""A grammar that takes longer to check is not compiled: that would take as long again, and could not be stopped. Of
processor time: how long the machine lets the child wait, or start, says nothing of the grammar."""
MAX_CACHED = 64
MAX_CACHED_BYTES = 4 * 2**20


@dataclass(slots=True, eq=False)
class _Job:
    """One grammar being compiled, and the uids that wait for it."""

    grammar: Grammar
    deadline: float
    waiting: set[int] = field(default_factory=set)
    checker: GrammarChecker | None = None
    """Set while its child works on this grammar."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a grammar: a prototype of its matcher, or what is wrong with it."""

    prototype: object = None
    error: str = ""


class GrammarEffects:
    """`perform` is called by the loop and never blocks; answers come by `mail`."""

    def __init__(
        self,
        matchers: Matchers | None,
        mail: Callable[[GrammarReady], None],
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        processes: int = 2,
    ) -> None:
        self._matchers = matchers
        self._mail = mail
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[Grammar, _Job] = {}
        self._job_of: dict[int, _Job] = {}
        self._known: OrderedDict[Grammar, _Known] = OrderedDict()
        self._known_bytes = 0
        self._idle = [GrammarChecker(clock) for _ in range(processes)]
        self._checkers = tuple(self._idle)
        self._threads = ThreadPoolExecutor(max_workers=processes, thread_name_prefix="remora-grammar")

    def perform(self, effect: CompileGrammar | ReleaseGrammar) -> None:
        if isinstance(effect, ReleaseGrammar):
            self._release(effect.uid)
        else:
            self._compile(effect)

    def close(self) -> None:
        """Kill what is being checked, and end the threads."""
        with self._lock:
            self._jobs.clear()
            self._job_of.clear()
        for checker in self._checkers:
            checker.close()
        self._threads.shutdown(wait=True)
        for checker in self._checkers:
            checker.join()

    @property
    def compiling(self) -> int:
        """Grammars that somebody waits for."""
        return len(self._jobs)

    # -- asked by the loop -----------------------------------------------------------------------------------------

    def _compile(self, effect: CompileGrammar) -> None:
        with self._lock:
            known = self._known.get(effect.grammar)
            if known is None:
                job = self._jobs.get(effect.grammar)
                if job is None:
                    job = self._jobs[effect.grammar] = _Job(effect.grammar, self._clock() + self._timeout_s)
                    self._threads.submit(self._work, job)
                job.waiting.add(effect.uid)
                self._job_of[effect.uid] = job
                return
            self._known.move_to_end(effect.grammar)
        self._answer(effect.uid, known)

    def _release(self, uid: int) -> None:
        """Stop a job that nobody waits for any more."""
        with self._lock:
            job = self._job_of.pop(uid, None)
            if job is not None:
                job.waiting.discard(uid)
                if not job.waiting:
                    del self._jobs[job.grammar]
                    if job.checker is not None:
                        job.checker.kill()
            if self._matchers is not None:
                self._matchers.close(uid)

    # -- on the pool's threads -------------------------------------------------------------------------------------

    def _work(self, job: _Job) -> None:
        try:
            known = self._find_out(job)
        except CheckTimedOut:
            known = None
        except Exception:
            logger.exception("compiling a grammar of kind %s failed", job.grammar.kind.value)
            known = None
        with self._lock:
            if self._jobs.get(job.grammar) is job:
                del self._jobs[job.grammar]
            if known is not None:
                self._keep(job.grammar, known)
            for uid in sorted(job.waiting):
                del self._job_of[uid]
                self._answer(uid, known)
            job.waiting.clear()

    def _find_out(self, job: _Job) -> _Known | None:
        if self._matchers is None:
            raise AssertionError("the door lets no grammar in where there are no matchers")
        with self._lock:
            known = self._known.get(job.grammar)
            if known is not None or not job.waiting:
                return known
            checker = job.checker = self._idle.pop()
        try:
            checked = checker.check(job.grammar, job.deadline, lambda: bool(job.waiting))
        finally:
            with self._lock:
                job.checker = None
                self._idle.append(checker)
        if checked.error:
            return _Known(error=f"the grammar cannot be used: {checked.error}")
        if not job.waiting or checked.took_s > MAX_CHECK_S:
            return None
        try:
            return _Known(prototype=self._matchers.compile(checked.source))
        except GrammarError as error:
            return _Known(error=f"the grammar cannot be used: {error}")

    def _answer(self, uid: int, known: _Known | None) -> None:
        if known is None:
            text = f"the grammar could not be compiled within {self._timeout_s:g} s; it may be too large"
            self._mail(GrammarReady(uid=uid, timed_out=True, error=text))
            return
        if known.prototype is not None and self._matchers is not None:
            self._matchers.open(uid, known.prototype)
        self._mail(GrammarReady(uid=uid, error=known.error))

    def _keep(self, grammar: Grammar, known: _Known) -> None:
        if grammar in self._known or len(grammar.text) > MAX_CACHED_BYTES:
            return
        self._known[grammar] = known
        self._known_bytes += len(grammar.text)
        while len(self._known) > MAX_CACHED or self._known_bytes > MAX_CACHED_BYTES:
            dropped, _ = self._known.popitem(last=False)
            self._known_bytes -= len(dropped.text)
