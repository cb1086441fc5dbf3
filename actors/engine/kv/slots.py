"""What sessions keep of their KV between turns, and in which order it is given up (rules K1, K4)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass

from actors.engine.kv.pages import PagePool


@dataclass(slots=True)
class Slot:
    """The pages of a session's first `length` positions. What they hold is known by content: `keys`, of the chain that
    begins with `root`, name the full ones, and `tail` are the tokens of the last one if it is not full.

    `borrowers`: running turns whose tables share it. `copied`: as much of it as there is room for has been copied out
    of the cache (rule K7)."""

    pages: list[int]
    keys: list[bytes]
    length: int
    root: bytes
    tail: tuple[int, ...] = ()
    borrowers: int = 0
    copied: bool = False


class Slots:
    """Slots by session. Those that nobody borrows are idle: they may be evicted, least recently used first."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._slots: dict[int, Slot] = {}
        self._idle: OrderedDict[int, int] = OrderedDict()
        """Sessions whose slot is idle, least recently used first, with their number of pages."""
        self._uncopied: OrderedDict[int, int] = OrderedDict()
        """Those of them that were not copied out of the cache."""
        self.idle_pages = 0
        self.uncopied_pages = 0

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, session: int) -> Slot | None:
        return self._slots.get(session)

    def all(self) -> dict[int, Slot]:
        return dict(self._slots)

    def idle(self) -> dict[int, int]:
        return dict(self._idle)

    def uncopied(self) -> dict[int, int]:
        return dict(self._uncopied)

    def oldest_idle(self, besides: Container[int]) -> int | None:
        """The least recently used of those that may be evicted."""
        return next((session for session in self._idle if session not in besides), None)

    def oldest_uncopied(self, besides: Container[int]) -> int | None:
        return next((session for session in self._uncopied if session not in besides), None)

    def idle_pages_of(self, sessions: Iterable[int]) -> int:
        return sum(self._idle.get(session, 0) for session in sessions)

    # -- changes ---------------------------------------------------------------------------------------------------

    def put(self, session: int, new: Slot, same: int = 0) -> None:
        """Give a session this slot, in place of what it had. Who borrowed the former one goes on doing so. `same`: so
        many of their first pages are the same; they stay held as they are, however long the session is."""
        old = self._slots.get(session)
        if old is not None:
            new.borrowers = old.borrowers
        self._pool.hold_for_session(new.pages[same:])
        if old is not None:
            self._pool.drop_by_session(reversed(old.pages[same:]))
        self._slots[session] = new
        self._file(session)

    def drop(self, session: int) -> int:
        """Forget a slot. Returns the number of pages it named."""
        self._unfile(session)
        slot = self._slots.pop(session)
        self._pool.drop_by_session(reversed(slot.pages))
        return len(slot.pages)

    def cut(self, session: int, full: int, page_size: int) -> None:
        """Keep only the first `full` pages of a slot, all of them full."""
        slot = self._slots[session]
        self._pool.drop_by_session(reversed(slot.pages[full:]))
        slot.pages, slot.keys, slot.length = slot.pages[:full], slot.keys[:full], full * page_size
        slot.tail = ()
        self._file(session)

    def borrow(self, session: int) -> None:
        self._slots[session].borrowers += 1
        self._unfile(session)

    def give_back(self, session: int) -> None:
        slot = self._slots.get(session)
        if slot is not None:
            slot.borrowers -= 1
            self._file(session)

    def mark_copied(self, session: int) -> None:
        """There is nothing more to copy of this slot, as long as it is this one."""
        self._slots[session].copied = True
        self.uncopied_pages -= self._uncopied.pop(session, 0)

    def _file(self, session: int) -> None:
        """Enter a slot among the idle ones if it is one, as the most recently used."""
        self._unfile(session)
        slot = self._slots[session]
        if slot.borrowers:
            return
        self._idle[session] = len(slot.pages)
        self.idle_pages += len(slot.pages)
        if not slot.copied:
            self._uncopied[session] = len(slot.pages)
            self.uncopied_pages += len(slot.pages)

    def _unfile(self, session: int) -> None:
        self.idle_pages -= self._idle.pop(session, 0)
        self.uncopied_pages -= self._uncopied.pop(session, 0)
