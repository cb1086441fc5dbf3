"""Performs SaveKV, LoadKV and DropKV for the driver, with real bytes from the runner's pages, and faults to order."""

from __future__ import annotations

from collections import deque

from actors.engine.effects import DropKV, KVLoaded, KVLost, KVSaved, LoadKV, SaveKV
from actors.runner.base import ModelRunner


class KVDesk:
    """Images by session, as the shell keeps them. Copies are made when they are answered, not when asked for.

    `room`: pages an image may have. `harmed`: pages (by position in their image) that cannot be read."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.held: deque[SaveKV | LoadKV] = deque()
        self.images: dict[int, list[bytes]] = {}
        self.room = 10**9
        self.harmed: set[int] = set()

    def take(self, effect: SaveKV | LoadKV | DropKV) -> None:
        """Note what is asked for. Dropping is done at once, and reaches what is still being saved."""
        if isinstance(effect, DropKV):
            self.images.pop(effect.session, None)
        else:
            if isinstance(effect, SaveKV):
                self.images.setdefault(effect.session, [])
            self.held.append(effect)

    def answer(self) -> KVSaved | KVLoaded:
        """Perform the oldest."""
        effect = self.held.popleft()
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
