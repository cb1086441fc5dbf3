"""Pages on their way out of the cache or into it (rule K7)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from actors.engine.kv.pages import PagePool


class Transfers:
    """At most one transfer per session. Its pages are held as a session's are until the copy is over, whatever becomes
    of the session meanwhile."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._pages: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, session: object) -> bool:
        return session in self._pages

    def __iter__(self) -> Iterator[int]:
        return iter(self._pages)

    def pages(self, session: int) -> list[int]:
        return self._pages[session]

    def begin(self, session: int, pages: Sequence[int]) -> None:
        """Hold pages that somebody holds already, or that are in the prefix index."""
        if session in self._pages:
            raise AssertionError(f"session {session} has a transfer already")
        self._pool.hold_for_session(pages)
        self._pages[session] = list(pages)

    def add_new(self, session: int, count: int) -> tuple[int, ...]:
        """Hold `count` pages more, which the pool must have. Returns them."""
        fresh = []
        for _ in range(count):
            page = self._pool.take()
            if page is None:
                raise AssertionError("the pool promised a page that it does not have")
            fresh.append(page)
        self._pool.hold_for_session(fresh)
        self._pool.drop_by_request(fresh)
        self._pages[session].extend(fresh)
        return tuple(fresh)

    def end(self, session: int) -> None:
        """The copy is over: let go."""
        self._pool.drop_by_session(reversed(self._pages.pop(session)))
