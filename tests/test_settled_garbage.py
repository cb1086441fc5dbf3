"""What a process is made of is not looked at by its garbage collector again."""

from __future__ import annotations

import gc
import weakref

from actors.process import settle_garbage


class Ring:
    def __init__(self) -> None:
        self.me = self


def test_what_comes_later_is_still_collected() -> None:
    """Nothing that was there is looked at again; cycles that are made afterwards go as ever, only less often."""
    before = gc.get_threshold()
    try:
        settle_garbage()
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold()[0] > before[0]
        ring = weakref.ref(Ring())
        gc.collect()
        assert ring() is None
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
