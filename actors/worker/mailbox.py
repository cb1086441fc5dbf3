"""The worker's inbox: put from any thread, drained by the one loop."""

from __future__ import annotations

import queue

from actors.engine.effects import EffectResult
from actors.messages import ToWorker

Letter = ToWorker | EffectResult


class Mailbox:
    """Order of arrival is kept. Nothing is computed here: putting is cheap and never blocks."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Letter | None] = queue.SimpleQueue()

    def __len__(self) -> int:
        """Letters that nobody has taken yet."""
        return self._queue.qsize()

    def put(self, letter: Letter) -> None:
        self._queue.put(letter)

    def wake(self) -> None:
        """Let a waiting `drain` return."""
        self._queue.put(None)

    def drain(self, wait_s: float | None) -> list[Letter]:
        """Everything that is there. When nothing is, wait for the first: up to `wait_s`, for ever if None."""
        letters: list[Letter] = []
        try:
            first = self._queue.get_nowait() if wait_s == 0 else self._queue.get(timeout=wait_s)
            if first is not None:
                letters.append(first)
            while True:
                letter = self._queue.get_nowait()
                if letter is not None:
                    letters.append(letter)
        except queue.Empty:
            return letters
