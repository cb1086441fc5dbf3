"""Who holds each page. The only place where reference counts change."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from actors.engine.plan import NUM_RESERVED_PAGES


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Pages by owner: every usable page is in exactly one of the four (rule K6).

    A page that a session's slot holds counts there, also while a turn reads it: `request_owned` is exactly what
    running requests added.
    """

    free: int
    prefix_only: int
    session_held: int
    request_owned: int
    total: int

    @property
    def adds_up(self) -> bool:
        return self.free + self.prefix_only + self.session_held + self.request_owned == self.total


class PagePool:
    """Reference counts of `num_pages` KV pages, the first `NUM_RESERVED_PAGES` of which are never handed out.

    A page is held by requests, by session slots, or by the prefix index; free when none of them does. A page that only
    the index holds waits in `_idle`, oldest first, and is handed out again when free pages run out.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages <= NUM_RESERVED_PAGES:
            raise ValueError(f"{num_pages} pages leave none to use; {NUM_RESERVED_PAGES} are reserved")
        self.total = num_pages - NUM_RESERVED_PAGES
        self._by_request = [0] * num_pages
        self._by_session = [0] * num_pages
        self._key: list[bytes | None] = [None] * num_pages
        self._page_by_key: dict[bytes, int] = {}
        self._free = list(range(num_pages - 1, NUM_RESERVED_PAGES - 1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._session_held = 0
        self._request_owned = 0

    @property
    def counts(self) -> PageCounts:
        return PageCounts(
            free=len(self._free),
            prefix_only=len(self._idle),
            session_held=self._session_held,
            request_owned=self._request_owned,
            total=self.total,
        )

    @property
    def available(self) -> int:
        """Pages that `take` can hand out now: free ones and those that only the prefix index holds."""
        return len(self._free) + len(self._idle)

    def take(self) -> int | None:
        """A page for a request: a free one, else the least recently used of the index. None when there is neither."""
        if self._free:
            page = self._free.pop()
        elif self._idle:
            page, _ = self._idle.popitem(last=False)
            self._forget_key(page)
        else:
            return None
        self._by_request[page] = 1
        self._request_owned += 1
        return page

    def find(self, key: bytes) -> int | None:
        """The page that holds the content named by `key`, if any."""
        return self._page_by_key.get(key)

    def publish(self, page: int, key: bytes) -> int:
        """Enter a page that somebody holds into the prefix index, unless that content is in it already. Returns the
        page that is found by the key from now on."""
        held = self._page_by_key.get(key)
        if held is not None:
            return held
        if self._key[page] is None:
            self._key[page] = key
            self._page_by_key[key] = page
        return page

    def hold_for_request(self, pages: Iterable[int]) -> None:
        by_request, by_session = self._by_request, self._by_session
        for page in pages:
            if by_request[page] == 0 and by_session[page] == 0:
                self._wake(page)
                self._request_owned += 1
            by_request[page] += 1

    def drop_by_request(self, pages: Iterable[int]) -> None:
        """Give back one request's hold. Pass the deepest page first, so that it is evicted first."""
        by_request, by_session = self._by_request, self._by_session
        for page in pages:
            left = by_request[page] = by_request[page] - 1
            if left > 0:
                continue
            if left < 0:
                raise AssertionError(f"page {page} given back twice")
            if by_session[page] == 0:
                self._request_owned -= 1
                self._rest(page)

    def hold_for_session(self, pages: Iterable[int]) -> None:
        for page in pages:
            if self._by_session[page] == 0:
                if self._by_request[page] == 0:
                    self._wake(page)
                else:
                    self._request_owned -= 1
                self._session_held += 1
            self._by_session[page] += 1

    def drop_by_session(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._by_session[page] -= 1
            if self._by_session[page] < 0:
                raise AssertionError(f"page {page} given back twice by a session")
            if self._by_session[page] == 0:
                self._session_held -= 1
                if self._by_request[page] == 0:
                    self._rest(page)
                else:
                    self._request_owned += 1

    def forget_prefixes(self) -> int:
        """Empty the index; pages that only it held become free. Returns how many did."""
        freed = len(self._idle)
        for page in self._page_by_key.values():
            self._key[page] = None
        self._page_by_key.clear()
        self._free.extend(reversed(self._idle))
        self._idle.clear()
        return freed

    def holders(self, page: int) -> tuple[int, int, bool]:
        """(requests, session slots, whether the index holds it), for the invariant checker."""
        return self._by_request[page], self._by_session[page], self._key[page] is not None

    def is_free(self, page: int) -> bool:
        return self._by_request[page] == 0 and self._by_session[page] == 0 and self._key[page] is None

    def free_list(self) -> list[int]:
        return list(self._free)

    def _wake(self, page: int) -> None:
        if page not in self._idle:
            raise AssertionError(f"page {page} is free: it cannot be shared")
        del self._idle[page]

    def _rest(self, page: int) -> None:
        if self._key[page] is None:
            self._free.append(page)
        else:
            self._idle[page] = None

    def _forget_key(self, page: int) -> None:
        key = self._key[page]
        if key is not None:
            del self._page_by_key[key]
            self._key[page] = None
