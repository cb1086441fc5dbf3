"""Page tables of running requests and slots of sessions; sole user of the page pool.

A running request has a *table*: pages for positions 0 … capacity. A session between turns has a *slot*: the table of
its last committed turn up to `length`, the number of positions whose KV is valid.

A turn that appends to its session borrows the slot's pages and writes behind `length`:

    slot     |████████ page ████████|████ length ┊          |
    table    |████████ same ████████|████ same   ┊ new KV   | new page …

Nothing below `length` is ever written again, so dropping the table (abort, preemption) leaves the slot as it was
(rule K2). A turn that diverges earlier may only share the full pages before the divergence; so may a fork, since its
source goes on writing in the page that is not full, and a slot that is cut short keeps no page that is only partly
valid, since that page may be another's too.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from actors.engine.kv.pages import PageCounts, PagePool


@dataclass(slots=True)
class PageTable:
    """A request's pages. `keys[i]` names the content of page i and everything before it (prefix index).

    `root` seeds the chain of keys: requests with different roots never share (tenant and salt, rule K3).
    """

    root: bytes
    pages: list[int]
    keys: list[bytes]
    slot: int | None = None


@dataclass(slots=True)
class Slot:
    """What a session keeps of its KV between turns."""

    pages: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    length: int = 0
    borrowers: int = 0


class KVCache:
    """All bookkeeping of KV pages for one worker.

    Requests are named by uid, slots by the session's uid. Never fails halfway: a method either does all of it or none.
    """

    def __init__(self, num_pages: int, page_size: int, *, prefix_cache: bool = True) -> None:
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.evicted_slots = 0
        self._prefix_cache = prefix_cache
        self._tables: dict[int, PageTable] = {}
        self._slots: dict[int, Slot] = {}
        self._evictable: OrderedDict[int, int] = OrderedDict()
        """Slots that no running turn borrows, least recently used first, with their number of pages."""
        self._evictable_pages = 0

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> PageCounts:
        return self.pool.counts

    @property
    def available(self) -> int:
        """Pages that can be had without preempting anybody (an upper bound: sessions may share pages)."""
        return self.pool.available + self._evictable_pages

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def table(self, uid: int) -> list[int]:
        return self._tables[uid].pages

    def has_table(self, uid: int) -> bool:
        return uid in self._tables

    def slot_length(self, session: int) -> int:
        slot = self._slots.get(session)
        return slot.length if slot else 0

    def slot_pages(self, session: int) -> int:
        slot = self._slots.get(session)
        return len(slot.pages) if slot else 0

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    def tables(self) -> dict[int, PageTable]:
        return dict(self._tables)

    def slots(self) -> dict[int, Slot]:
        return dict(self._slots)

    def evictable(self) -> dict[int, int]:
        """Slots that may be taken, oldest first, with the number of pages each is counted with."""
        return dict(self._evictable)

    # -- a request's life ------------------------------------------------------------------------------------------

    def begin(self, uid: int, tokens: Sequence[int], root: bytes, session: int | None, common: int) -> int:
        """Give a request its table, with as much KV as is there already. Returns the number of tokens covered.

        `common`: how many tokens the prompt shares with the session's slot from position 0. At least the last token is
        always left to compute, since its logits are wanted. Takes no new page.
        """
        if uid in self._tables:
            raise AssertionError(f"request {uid} has a table already")
        slot = self._slots.get(session) if session is not None else None
        pages: list[int] = []
        keys: list[bytes] = []
        covered = 0
        limit = len(tokens) - 1
        if slot is not None and slot.length:
            if common >= slot.length and not self._would_rewrite(slot, limit):
                pages, keys, covered = list(slot.pages), list(slot.keys), min(slot.length, limit)
            else:
                full = min(common, limit) // self.page_size
                pages, keys, covered = slot.pages[:full], slot.keys[:full], full * self.page_size
        if slot is None or common < slot.length or not slot.length or common - slot.length >= max(2, self.page_size):
            found, found_keys = self._match(tokens, root, limit)
            if len(found) * self.page_size > covered:
                pages, keys, covered = found, found_keys, len(found) * self.page_size
        self.pool.hold_for_request(pages)
        borrowed = session if slot is not None and slot.length else None
        self._tables[uid] = PageTable(root=root, pages=pages, keys=keys, slot=borrowed)
        if borrowed is not None and slot is not None:
            slot.borrowers += 1
            self._pin(borrowed)
        return covered

    def grow(self, uid: int, num_tokens: int) -> bool:
        """Make room for `num_tokens` positions, evicting prefix pages, then idle sessions' slots (rule K4).

        False when that is not enough; the request's table is unchanged then."""
        table = self._tables[uid]
        missing = self.pages_for(num_tokens) - len(table.pages)
        if missing <= 0:
            return True
        if missing > self.available:
            return False
        while self.pool.available < missing and self._evict_oldest_slot():
            pass
        if self.pool.available < missing:
            return False
        for _ in range(missing):
            page = self.pool.take()
            if page is None:
                raise AssertionError("the pool promised a page that it does not have")
            table.pages.append(page)
        return True

    def publish(self, uid: int, tokens: Sequence[int], computed: int, *, in_flight: bool) -> None:
        """Enter the pages that are full now into the prefix index: call when the step that filled them has committed.

        Of two requests that computed the same page side by side, the later one takes over the earlier one's (rule K3),
        unless a step in flight names its own. `computed`: positions whose KV is valid."""
        table = self._tables[uid]
        for index in range(len(table.keys), computed // self.page_size):
            key = self._key(table.keys[-1] if table.keys else table.root, tokens, index)
            table.keys.append(key)
            if not self._prefix_cache:
                continue
            page, held = table.pages[index], self.pool.find(key)
            if held is None:
                self.pool.publish(page, key)
            elif held != page and not in_flight and self.pool.holders(page)[:2] == (1, 0):
                self.pool.hold_for_request((held,))
                self.pool.drop_by_request((page,))
                table.pages[index] = held

    def keep(self, uid: int, session: int, length: int) -> None:
        """A turn committed: the session's slot becomes this table's first `length` positions (rule K1).

        The request keeps its own hold until `release`."""
        table = self._tables[uid]
        num_pages = self.pages_for(length)
        new = Slot(pages=table.pages[:num_pages], keys=table.keys[: length // self.page_size], length=length)
        self.pool.hold_for_session(new.pages)
        old = self._slots.get(session)
        if old is not None:
            self.pool.drop_by_session(reversed(old.pages))
            new.borrowers = old.borrowers
        if table.slot is None:
            table.slot = session
            new.borrowers += 1
        self._slots[session] = new
        self._pin(session)

    def release(self, uid: int) -> int:
        """Take a request's table away: exactly what it held comes back. Returns the number of pages it named."""
        table = self._tables.pop(uid)
        self.pool.drop_by_request(reversed(table.pages))
        if table.slot is not None:
            slot = self._slots.get(table.slot)
            if slot is not None:
                slot.borrowers -= 1
                if slot.borrowers == 0:
                    self._unpin(table.slot, len(slot.pages))
        return len(table.pages)

    # -- sessions and pressure -------------------------------------------------------------------------------------

    def drop_slot(self, session: int) -> int:
        """Forget a session's KV. Returns the number of pages the slot named."""
        slot = self._slots.pop(session, None)
        if slot is None:
            return 0
        self._pin(session)
        for table in self._tables.values():
            if table.slot == session:
                table.slot = None
        self.pool.drop_by_session(reversed(slot.pages))
        return len(slot.pages)

    def share(self, source: int, session: int, num_tokens: int) -> int:
        """A fork: give a session without a slot the full pages of another's first `num_tokens` positions.

        Returns the length of its slot, 0 when there is nothing to share."""
        if session in self._slots:
            raise AssertionError(f"session {session} has a slot already")
        full = min(num_tokens, self.slot_length(source)) // self.page_size
        if not full:
            return 0
        shared = self._slots[source]
        new = Slot(pages=shared.pages[:full], keys=shared.keys[:full], length=full * self.page_size)
        self.pool.hold_for_session(new.pages)
        self._slots[session] = new
        self._unpin(session, full)
        return new.length

    def cut_slot(self, session: int, num_tokens: int) -> int:
        """Only the first `num_tokens` positions of a slot are valid any more: keep the full pages of them.

        Returns the length that is left. A slot that is no longer than that is left alone."""
        slot = self._slots.get(session)
        if slot is None or num_tokens >= slot.length:
            return self.slot_length(session)
        full = num_tokens // self.page_size
        if not full:
            self.drop_slot(session)
            return 0
        self.pool.drop_by_session(reversed(slot.pages[full:]))
        slot.pages, slot.keys, slot.length = slot.pages[:full], slot.keys[:full], full * self.page_size
        if session in self._evictable:
            self._pin(session)
            self._unpin(session, full)
        return slot.length

    def flush(self) -> int:
        """Drop idle sessions' KV and the whole prefix index. Returns the number of pages made free."""
        before = self.pool.counts.free
        while self._evict_oldest_slot():
            pass
        self.pool.forget_prefixes()
        return self.pool.counts.free - before

    def _would_rewrite(self, slot: Slot, limit: int) -> bool:
        """Whether computing from `limit` on writes in a page of the slot that others read, be it the same values."""
        if limit >= slot.length:
            return False
        requests, sessions, _ = self.pool.holders(slot.pages[limit // self.page_size])
        return requests + sessions > 1

    def _pin(self, session: int) -> None:
        self._evictable_pages -= self._evictable.pop(session, 0)

    def _unpin(self, session: int, num_pages: int) -> None:
        self._evictable[session] = num_pages
        self._evictable_pages += num_pages

    def _evict_oldest_slot(self) -> bool:
        if not self._evictable:
            return False
        session = next(iter(self._evictable))
        self.drop_slot(session)
        self.evicted_slots += 1
        return True

    def _match(self, tokens: Sequence[int], root: bytes, limit: int) -> tuple[list[int], list[bytes]]:
        pages: list[int] = []
        keys: list[bytes] = []
        if not self._prefix_cache:
            return pages, keys
        key = root
        for index in range(limit // self.page_size):
            key = self._key(key, tokens, index)
            page = self.pool.find(key)
            if page is None:
                break
            pages.append(page)
            keys.append(key)
        return pages, keys

    def _key(self, before: bytes, tokens: Sequence[int], index: int) -> bytes:
        start = index * self.page_size
        content = array("i", tokens[start : start + self.page_size]).tobytes()
        return hashlib.blake2b(before + content, digest_size=16).digest()


def namespace_root(tenant: str, salt: str, *, shared: bool) -> bytes:
    """Seed of a chain of prefix keys: tenants do not share unless told to, and a salt narrows further (rule K3)."""
    scope = "" if shared else tenant
    named = f"{len(scope)}:{scope}{salt}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(named, digest_size=16).digest()
