"""Page tables of running requests, and what they borrow of the slots of their sessions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from actors.engine.kv.keys import PrefixKeys
from actors.engine.kv.pages import PagePool


@dataclass(slots=True)
class PageTable:
    """A request's pages, the first `published` of which are full and valid, and named by `keys`. `slot`: the session
    whose slot it borrows from. The slot holds the first `borrowed` pages, and the request only the others: a turn of a
    long session does not count its pages over."""

    keys: PrefixKeys
    pages: list[int]
    published: int
    slot: int | None = None
    borrowed: int = 0

    @property
    def own(self) -> list[int]:
        """What the request holds."""
        return self.pages[self.borrowed :]


def end_loans(tables: Iterable[PageTable], pool: PagePool, session: int, left: list[int]) -> None:
    """Only the pages `left` are to stay in a session's slot: whoever borrows others has to hold what it borrows
    itself."""
    for table in tables:
        if table.slot == session and table.borrowed and table.pages[: table.borrowed] != left[: table.borrowed]:
            pool.hold_for_request(table.pages[: table.borrowed])
            table.borrowed = 0
