"""Copies KV for the driver as the engine asks, with real bytes of the runner's pages, and faults to order."""

from __future__ import annotations

from collections import deque

from actors.engine.effects import DropKV, KVLoaded, KVLost, KVSaved, LoadKV, PackKV, SaveKV, UnpackKV
from actors.runner.base import ModelRunner


class KVDesk:
    """Images by session, as the shell keeps them. Copies are made when they are answered, not when asked for.

    `parcels`: images on their way to another worker; two desks may share them. `room`: pages an image may have.
    `harmed`: pages (by position in their image) that cannot be read."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.held: deque[SaveKV | LoadKV | UnpackKV] = deque()
        self.images: dict[int, list[bytes]] = {}
        self.parcels: dict[str, list[bytes]] = {}
        self.room = 10**9
        self.harmed: set[int] = set()

    def take(self, effect: SaveKV | LoadKV | DropKV | PackKV | UnpackKV) -> None:
        """Note what is asked for. Dropping and packing are done at once; what is saved of a dropped one is lost."""
        if isinstance(effect, DropKV):
            self.images.pop(effect.session, None)
        elif isinstance(effect, PackKV):
            self.parcels[effect.parcel] = self.images.pop(effect.session)
        elif isinstance(effect, UnpackKV) and not effect.session:
            self.parcels.pop(effect.parcel, None)
        else:
            if isinstance(effect, SaveKV):
                self.images.setdefault(effect.session, [])
            self.held.append(effect)

    def answer(self) -> KVSaved | KVLoaded:
        """Perform the oldest."""
        effect = self.held.popleft()
        if isinstance(effect, UnpackKV):
            self.images[effect.session] = self.parcels.pop(effect.parcel, [])[: self.room]
            return KVSaved(session=effect.session, pages=len(self.images[effect.session]))
        return self._save(effect) if isinstance(effect, SaveKV) else self._load(effect)

    def lose(self, session: int, pages: int) -> KVLost:
        """Forget all but the first `pages` of an image."""
        del self.images[session][pages:]
        return KVLost(session=session, pages=pages)

    def _save(self, effect: SaveKV) -> KVSaved:
        image = self.images.get(effect.session)
        if image is None:
            return KVSaved(session=effect.session, pages=0)
        if effect.first <= len(image):
            del image[effect.first :]
            image += [self._runner.read_pages([page]).wait() for page in effect.pages]
            del image[self.room :]
        return KVSaved(session=effect.session, pages=len(image))

    def _load(self, effect: LoadKV) -> KVLoaded:
        image = self.images.get(effect.session, [])
        done = 0
        for position, page in enumerate(effect.pages, effect.first):
            if position >= len(image) or position in self.harmed:
                break
            self._runner.write_pages([page], image[position]).wait()
            done += 1
        return KVLoaded(session=effect.session, pages=done)
