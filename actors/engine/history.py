"""What a session remembers: its committed turns, as token ids (rules S1, S2, S4)."""

from __future__ import annotations

from collections.abc import Iterable

from actors.engine.context import Context
from actors.records import TurnRecord


class BrokenHistory(Exception):
    """What was read from the store is not a history: its head, or a turn that another continues from, is missing."""


class History:
    """Committed turns by rid, in order of commit. Changes only in `commit` and `roll_back`.

    The context of the head is kept ready, since most turns append to it; others are rebuilt from their chain.
    """

    def __init__(self, turns: Iterable[TurnRecord] = (), head: str | None = None) -> None:
        """`head`: rid of the turn to go on from; None for the last one. Raises BrokenHistory."""
        self._turns: dict[str, TurnRecord] = {}
        self._head: str | None = None
        self._head_context = Context([])
        self.last_number = 0
        for turn in turns:
            self._add(turn)
        if head is not None and head not in self._turns:
            raise BrokenHistory(f"the head {head!r} is not among the turns")
        orphan = next((turn for turn in self._turns.values() if turn.parent and turn.parent not in self._turns), None)
        if orphan is not None:
            raise BrokenHistory(f"turn {orphan.rid!r} continues from {orphan.parent!r}, which is not there")
        self._head = head or next(reversed(self._turns), None)
        self._head_context = Context(self._rebuild(self._head))

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, rid: object) -> bool:
        return rid in self._turns

    @property
    def head(self) -> str | None:
        """rid of the turn that the next one continues from: the last committed, or where a rollback went."""
        return self._head

    @property
    def num_tokens(self) -> int:
        """Length of the head's context."""
        return self._head_context.length

    def turn(self, rid: str) -> TurnRecord:
        return self._turns[rid]

    def named_like(self, beginning: str = "", ending: str = "") -> list[TurnRecord]:
        """Turns whose name begins and ends with these, in order of commit."""
        return [turn for rid, turn in self._turns.items() if rid.startswith(beginning) and rid.endswith(ending)]

    def context(self, rid: str | None) -> list[int]:
        """ctx(turn): prompt and output, raw ids, stop token included. Empty for None. A fresh list."""
        if rid is None:
            return []
        head = self._head_context
        return head.tokens[: head.length] if rid == self.head else self._rebuild(rid)

    @property
    def agrees(self) -> bool:
        """Whether the head's context, and what is known of it, is what its turns add up to, for the invariant
        checker."""
        return self._head_context.holds(self._rebuild(self._head))

    def lend(self) -> Context:
        """The head's own context, for a turn to go on in: of the turn that holds the lease, and of nobody else."""
        self._head_context.cut()
        return self._head_context

    def descendants(self, rid: str) -> tuple[str, ...]:
        """All turns that continue from `rid`, directly or not, in order of commit (parents come before children)."""
        below = {rid}
        for turn in self._turns.values():
            if turn.parent in below:
                below.add(turn.rid)
        return tuple(name for name in self._turns if name in below and name != rid)

    def all_rids(self) -> tuple[str, ...]:
        return tuple(self._turns)

    def commit(self, turn: TurnRecord, context: Context) -> None:
        """Add a turn that the store has. `context` is its ctx; the history keeps it."""
        context.settle()
        self._add(turn)
        self._head = turn.rid
        self._head_context = context

    def roll_back(self, rid: str) -> None:
        """Make `rid` the head and forget its descendants, as the store has done."""
        for name in self.descendants(rid):
            del self._turns[name]
        self._head_context = Context(self.context(rid))
        self._head = rid
        self.last_number = max(turn.number for turn in self._turns.values())  # As if it had been read anew.

    def _add(self, turn: TurnRecord) -> None:
        for rid in turn.dropped:
            self._turns.pop(rid, None)
        self._turns[turn.rid] = turn
        self.last_number = max(self.last_number, turn.number)

    def _rebuild(self, rid: str | None) -> list[int]:
        chain: list[TurnRecord] = []
        while rid is not None:
            turn = self._turns[rid]
            chain.append(turn)
            rid = turn.parent
        context: list[int] = []
        for turn in reversed(chain):
            del context[turn.keep :]
            context.extend(turn.input_ids)
            context.extend(turn.output_ids)
        return context
