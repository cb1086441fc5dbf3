"""Idle sessions' KV leaves the cache before it is needed for others, and comes back on the next turn (rule K7).

Full pages of idle slots are copied out ahead of need, least recently used session first, while few pages could be had
without losing any. Evicting such a slot then costs nothing: its copy is its *image*, which the shell keeps under the
session's uid. An image is a cache of a cache: whatever of it is missing, torn or of another past is prefilled from
history. What page holds what is known by content (`PrefixKeys`), so that a rollback or another branch needs no care.

              ┌────── save ahead ──────┐          evicted            turn comes
    slot only │ SaveKV … KVSaved       │ slot and image ──▶ image only ──▶ LoadKV … KVLoaded ──▶ slot and image
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.engine.core import Core, Image, forget_image
from actors.engine.effects import KVLoaded, KVLost, KVSaved, LoadKV, SaveKV, UnpackKV
from actors.engine.request import Request, RequestState
from actors.engine.turns import Turn

MAX_SAVES = 2
"""Copies under way at once: enough to keep the copying thread busy."""


@dataclass(slots=True)
class Load:
    """An image on its way into the cache: its first pages, named by `keys` of the chain from `root`, are the context of
    turn `parent`.

    `present` of them were here all along. `waiter`: uid of the request that needs it, which may be over by now."""

    parent: str
    root: bytes
    keys: list[bytes]
    present: int
    waiter: int


@dataclass(slots=True)
class Counts:
    """Since the engine began. `missed_pages`: asked for and not there, or not unharmed."""

    saved_pages: int = 0
    loaded_pages: int = 0
    missed_pages: int = 0
    woken_turns: int = 0


class Hibernation:
    """Decides what to copy when. Bytes, budgets and files are the shell's."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._below = int(core.settings.hibernate_below * core.kv.counts.total)
        self._saving: set[int] = set()
        self._loads: dict[int, Load] = {}
        self._arriving: dict[int, int] = {}
        """Sessions whose image comes from another worker, and the request that waits for it; 0 for none."""
        self.counts = Counts()

    # -- out -------------------------------------------------------------------------------------------------------

    def save_ahead(self) -> None:
        """Have idle slots copied while pages that could be had without a loss are few."""
        kv = self._core.kv
        while len(self._saving) < MAX_SAVES and kv.replaceable < self._below:
            session = kv.slots.oldest_uncopied(besides=kv.transfers)
            if session is None:
                return
            self.save(session)

    def save(self, session: int) -> bool:
        """Have what is not in its image yet of an idle session's slot copied. False: there is nothing to copy."""
        slot = self._core.kv.slots.get(session)
        if slot is None:
            return False
        image = self._core.images.setdefault(session, Image())
        first = _in_common(image.keys, slot.keys)
        if first == len(slot.keys):
            self._core.kv.slots.mark_copied(session)
            return False
        pages = self._core.kv.lend(session, first)
        image.keys, image.saving = image.keys[:first], list(slot.keys)
        self._saving.add(session)
        self._core.out.append(SaveKV(session=session, first=first, pages=pages))
        return True

    def saved(self, result: KVSaved, now: float) -> None:
        """A copy is made, or as much of it as there was room for. It will not be tried again: there is no room."""
        kv = self._core.kv
        self._saving.discard(result.session)
        kv.transfers.end(result.session)
        image, slot = self._core.images.get(result.session), kv.slots.get(result.session)
        if image is not None:
            self.counts.saved_pages += max(0, result.pages - len(image.keys))
            if slot is not None and slot.keys == image.saving:
                kv.slots.mark_copied(result.session)
            image.keys, image.saving = image.saving[: result.pages], []
        waiter = self._core.requests.by_uid(self._arriving.pop(result.session, 0))
        if waiter is not None and waiter.state is RequestState.WAITING_KV:
            self._go_on(waiter, now)  # It looks again, and will have the image read.
        self._may_close(result.session)

    def arrives(self, session: int, keys: list[bytes], parcel: str) -> None:
        """An image comes from another worker (rule T5). Until it is there its session neither saves nor closes."""
        self._core.images[session] = Image(saving=keys)
        self._core.kv.transfers.begin(session, ())
        self._arriving[session] = 0
        self._core.out.append(UnpackKV(session=session, parcel=parcel))

    def lost(self, result: KVLost) -> None:
        """The shell needed the room. The slot, if there still is one, is not copied again: others were used later."""
        image = self._core.images.get(result.session)
        if image is not None:
            del image.keys[result.pages :]

    # -- back ------------------------------------------------------------------------------------------------------

    def wake(self, request: Request, covered: int, now: float) -> bool:
        """Whether a request that is about to start, `covered` tokens of which are here, has to wait for its session's
        image; it has left the queue and given its pages back then."""
        turn = request.turn
        if turn is None:
            return False
        uid = turn.session.uid
        if uid in self._arriving:
            self._core.kv.release(request.uid)
            self._arriving[uid] = request.uid
        elif uid in self._loads:
            self._core.kv.release(request.uid)
            self._loads[uid].waiter = request.uid
        elif not self._load(request, turn, covered):
            return False
        self._core.requests.wake(request)
        request.move(RequestState.WAITING_KV, "its session's KV is on its way", now)
        return True

    def _load(self, request: Request, turn: Turn, covered: int) -> bool:
        """Have the image read, if there is more in it than is here. False: there is not, or no room for it."""
        kv, uid = self._core.kv, turn.session.uid
        image = self._core.images.get(uid)
        if image is None or turn.parent is None or uid in kv.transfers:
            return False
        limit = min(turn.keep, request.reusable) // kv.page_size
        wanted = request.keys.in_common(image.keys, limit)
        present = kv.table(request.uid)[: covered // kv.page_size]
        if wanted <= len(present):
            return False
        pages = kv.receive(uid, present, wanted - len(present))
        if pages is None:
            return False
        kv.release(request.uid)
        self._loads[uid] = Load(turn.parent, request.keys.root, image.keys[:wanted], len(present), request.uid)
        self._core.out.append(LoadKV(session=uid, first=len(present), pages=pages))
        return True

    def loaded(self, result: KVLoaded, now: float) -> None:
        """What came back becomes the session's slot; what did not is prefilled. The request that waited goes on."""
        kv, uid = self._core.kv, result.session
        load = self._loads.pop(uid)
        whole = load.present + result.pages
        self.counts.loaded_pages += result.pages
        self.counts.missed_pages += len(load.keys) - whole
        session, image = self._core.sessions.by_uid(uid), self._core.images.get(uid)
        if image is not None and whole < len(load.keys):
            del image.keys[whole:]
        if session is not None and whole and load.parent in session.history:
            kv.adopt(uid, load.root, load.keys[:whole])
            session.slot_rid = load.parent
        kv.transfers.end(uid)
        waiter = self._core.requests.by_uid(load.waiter)
        if waiter is not None and waiter.state is RequestState.WAITING_KV:
            self.counts.woken_turns += result.pages > 0
            self._go_on(waiter, now)
        self._may_close(uid)

    def _go_on(self, request: Request, now: float) -> None:
        """Back in the queue: how much of what is here now is of use shows when it starts."""
        self._core.requests.woken(request)
        request.move(RequestState.WAITING, "its session's KV is here", now)
        self._core.requests.enqueue(request)

    # -- both ------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Forget every image."""
        for session in list(self._core.images):
            forget_image(self._core, session)

    def _may_close(self, uid: int) -> None:
        session = self._core.sessions.by_uid(uid)
        if session is not None:
            self._core.free_sessions.append(session)


def _in_common(image: list[bytes], slot: list[bytes]) -> int:
    """Number of leading pages that are the same. A key stands for all before it, so that mostly one is compared."""
    shorter = min(len(image), len(slot))
    if shorter and image[shorter - 1] == slot[shorter - 1]:
        return shorter
    return next((i for i in range(shorter) if image[i] != slot[i]), shorter)
