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

from collections.abc import Sequence

from actors.engine.kv.keys import PrefixKeys, tokens_in_common
from actors.engine.kv.pages import PageCounts, PagePool
from actors.engine.kv.slots import Slot, Slots
from actors.engine.kv.tables import PageTable, end_loans
from actors.engine.kv.transfers import Transfers


class KVCache:
    """All bookkeeping of KV pages for one worker.

    Requests are named by uid, slots by the session's uid. Never fails halfway: a method either does all of it or none.
    """

    def __init__(self, num_pages: int, page_size: int, *, prefix_cache: bool = True) -> None:
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.slots = Slots(self.pool)
        self.transfers = Transfers(self.pool)
        self.evicted_slots = 0
        self._prefix_cache = prefix_cache
        self._tables: dict[int, PageTable] = {}

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> PageCounts:
        return self.pool.counts

    @property
    def available(self) -> int:
        """Pages that can be had without preempting anybody (an upper bound: sessions may share pages)."""
        return self.pool.available + self.slots.idle_pages - self.slots.idle_pages_of(self.transfers)

    @property
    def replaceable(self) -> int:
        """Pages that can be had without losing anything but prefixes: `available` less what has no copy."""
        return self.pool.available + self.slots.idle_pages - self.slots.uncopied_pages

    def pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def table(self, uid: int) -> list[int]:
        return self._tables[uid].pages

    def has_table(self, uid: int) -> bool:
        return uid in self._tables

    def slot_length(self, session: int) -> int:
        slot = self.slots.get(session)
        return slot.length if slot else 0

    def slot_keys(self, session: int) -> list[bytes]:
        """Keys of the full pages of a session's slot."""
        slot = self.slots.get(session)
        return slot.keys if slot else []

    def tables(self) -> dict[int, PageTable]:
        return dict(self._tables)

    # -- a request's life ------------------------------------------------------------------------------------------

    def begin(self, uid: int, keys: PrefixKeys, session: int | None, kept: int = 0, *, most: int | None = None) -> int:
        """Give a request its table, with as much KV as is there already, in its session's slot or in the prefix index.
        Returns the number of tokens covered.

        `keys` are those of the request's tokens, the first `kept` of which are the session's committed context. Where
        its slot has that, what is appended is computed, even if the index has it from an attempt that was aborted: as
        if that had never been (rule K2). At least the last token is always left to compute, since its logits are
        wanted. Takes no new page.

        `most`: so many tokens may be covered. What is behind them is computed anew, and not in the slot's own pages.
        """
        if uid in self._tables:
            raise AssertionError(f"request {uid} has a table already")
        slot = self.slots.get(session) if session is not None else None
        last = len(keys.tokens) - 1
        limit = last if most is None else min(most, last)
        common = 0 if slot is None else tokens_in_common(keys, slot.keys, slot.tail, self.page_size)
        shared = min(common, limit) // self.page_size
        whole = slot is not None and common == slot.length
        # A slot holds all of a context but its last token, unless its session was forked or cut.
        complete = slot is not None and whole and slot.length >= kept - 1
        found = [] if complete else self._match(keys, shared, min(limit, kept) if whole else limit)
        borrows = slot is not None and whole and not found and min(slot.length, last) <= limit
        if slot is not None and borrows and not self._would_rewrite(slot, limit):
            pages, covered = list(slot.pages), min(slot.length, limit)
        else:
            pages, covered = slot.pages[:shared] if slot else [], (shared + len(found)) * self.page_size
        table = PageTable(keys=keys, pages=pages, published=covered // self.page_size)
        if slot is not None and session is not None and slot.length:
            table.slot, table.borrowed = session, len(pages)
            self.slots.borrow(session)
        self.pool.hold_for_request(found)
        table.pages += found
        self._tables[uid] = table
        return covered

    def grow(self, uid: int, num_tokens: int) -> bool:
        """Make room for `num_tokens` positions, evicting prefix pages, then idle sessions' slots (rule K4).

        False when that is not enough; the request's table is unchanged then."""
        table = self._tables[uid]
        missing = -(-num_tokens // self.page_size) - len(table.pages)
        if missing <= 0:
            return True
        pool = self.pool
        if pool.available < missing and not self._evict(missing):
            return False
        for _ in range(missing):
            page = pool.take()
            if page is None:
                raise AssertionError("the pool promised a page that it does not have")
            table.pages.append(page)
        return True

    def publish(self, uid: int, computed: int, *, in_flight: bool) -> None:
        """Enter the pages that are full now into the prefix index: call when the step that filled them has committed.

        Of two requests that computed the same page side by side, the later one takes over the earlier one's (rule K3),
        unless a step in flight names its own. `computed`: positions whose KV is valid."""
        table = self._tables[uid]
        for index in range(table.published, computed // self.page_size):
            table.published = index + 1
            if not self._prefix_cache:
                continue
            page = table.pages[index]
            held = self.pool.publish(page, table.keys[index])
            if held != page and not in_flight and self.pool.holders(page)[:2] == (1, 0):
                self.pool.hold_for_request((held,))
                self.pool.drop_by_request((page,))
                table.pages[index] = held

    def keep(self, uid: int, session: int, length: int) -> None:
        """A turn committed: the session's slot becomes this table's first `length` positions (rule K1).

        The request keeps its own hold until `release`."""
        table = self._tables[uid]
        full, used = length // self.page_size, self.pages_for(length)
        tail = tuple(table.keys.tokens[full * self.page_size : length])
        # A committed turn grows no more: a long session's table need not be copied.
        pages = table.pages if used == len(table.pages) else table.pages[:used]
        end_loans((other for other in self._tables.values() if other is not table), self.pool, session, pages)
        lent = table.borrowed if table.slot == session else 0
        self.slots.put(session, Slot(pages, table.keys.first(full), length, table.keys.root, tail), lent)
        if table.slot is None:
            table.slot = session
            self.slots.borrow(session)

    def release(self, uid: int) -> int:
        """Take a request's table away: exactly what it held comes back. Returns the number of pages it named."""
        table = self._tables.pop(uid)
        self.pool.drop_by_request(reversed(table.own))
        if table.slot is not None:
            self.slots.give_back(table.slot)
        return len(table.pages)

    # -- sessions and pressure -------------------------------------------------------------------------------------

    def drop_slot(self, session: int) -> int:
        """Forget a session's KV. Returns the number of pages the slot named."""
        if self.slots.get(session) is None:
            return 0
        end_loans(self._tables.values(), self.pool, session, [])
        for table in self._tables.values():
            if table.slot == session:
                table.slot = None
        return self.slots.drop(session)

    def share(self, source: int, session: int, tokens: Sequence[int]) -> int:
        """A fork: give a session without a slot the full pages of another's that hold its `tokens`.

        Returns the length of its slot, 0 when there is nothing to share."""
        if self.slots.get(session) is not None:
            raise AssertionError(f"session {session} has a slot already")
        shared = self.slots.get(source)
        full = self._in_common(shared, tokens) // self.page_size if shared else 0
        if shared is None or not full:
            return 0
        self.slots.put(session, Slot(shared.pages[:full], shared.keys[:full], full * self.page_size, shared.root))
        return full * self.page_size

    def cut_slot(self, session: int, tokens: Sequence[int]) -> int:
        """Only what a slot holds of these `tokens` is wanted any more: keep the full pages of that.

        Returns the length that is left. A slot that holds nothing else is left alone."""
        slot = self.slots.get(session)
        common = self._in_common(slot, tokens) if slot else 0
        if slot is None or common >= slot.length:
            return common
        full = common // self.page_size
        if full:
            end_loans(self._tables.values(), self.pool, session, slot.pages[:full])
            self.slots.cut(session, full, self.page_size)
        else:
            self.drop_slot(session)
        return full * self.page_size

    def flush(self) -> int:
        """Drop idle sessions' KV and the whole prefix index. Returns the number of pages made free."""
        before = self.pool.counts.free
        while self._evict_oldest_slot():
            pass
        self.pool.forget_prefixes()
        return self.pool.counts.free - before

    # -- copies (rule K7) ------------------------------------------------------------------------------------------

    def lend(self, session: int, first: int) -> tuple[int, ...]:
        """Hold the full pages of a slot from page `first` on, until `transfers.end`. Returns them."""
        slot = self.slots.get(session)
        if slot is None:
            raise AssertionError(f"session {session} has no slot to copy")
        pages = slot.pages[first : len(slot.keys)]
        self.transfers.begin(session, pages)
        return tuple(pages)

    def receive(self, session: int, present: list[int], count: int) -> tuple[int, ...] | None:
        """Hold `present`, which are here, and `count` new pages, until `transfers.end`. Returns the new ones; None if
        there is no room, and nothing is held then."""
        self.transfers.begin(session, present)
        if not self._evict(count):
            self.transfers.end(session)
            return None
        return self.transfers.add_new(session, count)

    def adopt(self, session: int, root: bytes, keys: list[bytes]) -> None:
        """The first pages of a session's transfer, those that `keys` name, become its slot. The transfer goes on."""
        pages = self.transfers.pages(session)[: len(keys)]
        if self._prefix_cache:
            for page, key in zip(pages, keys, strict=True):
                self.pool.publish(page, key)
        end_loans(self._tables.values(), self.pool, session, pages)
        self.slots.put(session, Slot(pages, keys, len(keys) * self.page_size, root, copied=True))

    # -- inside ----------------------------------------------------------------------------------------------------

    def _in_common(self, slot: Slot, tokens: Sequence[int]) -> int:
        keys = PrefixKeys(slot.root, tokens, self.page_size)
        return tokens_in_common(keys, slot.keys, slot.tail, self.page_size)

    def _would_rewrite(self, slot: Slot, limit: int) -> bool:
        """Whether computing from `limit` on writes in a page of the slot that others read, be it the same values."""
        if limit >= slot.length:
            return False
        requests, sessions, _ = self.pool.holders(slot.pages[limit // self.page_size])
        return requests + sessions > 1

    def _evict(self, wanted: int) -> bool:
        """Have at least `wanted` pages to hand out, at the cost of idle sessions' slots. False: there are not so many;
        slots may be gone all the same, since how many pages one gives back shows only then."""
        if wanted > self.available:
            return False
        while self.pool.available < wanted and self._evict_oldest_slot():
            pass
        return self.pool.available >= wanted

    def _evict_oldest_slot(self) -> bool:
        """What is being copied stays: its pages would not come back at once."""
        session = self.slots.oldest_idle(besides=self.transfers)
        if session is None:
            return False
        self.drop_slot(session)
        self.evicted_slots += 1
        return True

    def _match(self, keys: PrefixKeys, first: int, limit: int) -> list[int]:
        """Pages of the prefix index from page `first` on, of the first `limit` tokens, as far as they are there without
        a gap."""
        pages: list[int] = []
        if not self._prefix_cache:
            return pages
        for index in range(first, limit // self.page_size):
            page = self.pool.find(keys[index])
            if page is None:
                break
            pages.append(page)
        return pages
