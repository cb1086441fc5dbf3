"""Grammars of a hand-driven engine: compiled by the real library, in this process, when told to."""

from __future__ import annotations

from actors.engine.effects import CompileGrammar, GrammarReady
from actors.messages import Grammar
from actors.runner.grammar.matchers import GrammarError, Matchers


class GrammarDesk:
    """`held`: what is still to be compiled, by uid. `released`: requests with a grammar that are over."""

    def __init__(self, matchers: Matchers | None) -> None:
        self._matchers = matchers
        self.held: dict[int, Grammar] = {}
        self.released: set[int] = set()

    @property
    def open_uids(self) -> set[int]:
        """Requests that the runner holds a matcher for."""
        return set() if self._matchers is None else set(self._matchers._states)

    def take(self, effect: CompileGrammar) -> None:
        self.held[effect.uid] = effect.grammar

    def answer(self, *, timed_out: bool = False) -> GrammarReady:
        """Compile the oldest, or let that time out."""
        uid = next(iter(self.held))
        grammar = self.held.pop(uid)
        return GrammarReady(uid=uid, timed_out=True) if timed_out else self._compile(uid, grammar)

    def release(self, uid: int) -> None:
        assert uid not in self.released, "a grammar is released once"
        self.released.add(uid)
        self.held.pop(uid, None)
        if self._matchers is not None:
            self._matchers.close(uid)

    def _compile(self, uid: int, grammar: Grammar) -> GrammarReady:
        from actors.runner.grammar.check import check

        assert self._matchers is not None
        error, source = check(grammar.kind.value, grammar.text)
        if error:
            return GrammarReady(uid=uid, error=error)
        try:
            self._matchers.open(uid, self._matchers.compile(source))
        except GrammarError as failure:
            return GrammarReady(uid=uid, error=str(failure))
        return GrammarReady(uid=uid)
