"""KV that moves from one worker to another (rule T5)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from actors.engine.effects import KVSaved, PackKV, SaveKV, UnpackKV
from actors.runner.toy import ToyRunner
from actors.worker.kv_effects import KVEffects
from actors.worker.kv_parcels import KEEP_S, Parcel, Parcels
from configs import HibernateConfig


class Desk:
    """The copying thread of one worker, and what it answers."""

    def __init__(self, page_size: int = 16, host_bytes: int = 2**20) -> None:
        self.runner = ToyRunner(page_size=page_size, kv_tokens=64 * page_size)
        self.answers: queue.Queue[object] = queue.Queue()
        self.effects = KVEffects(self.runner, HibernateConfig(host_bytes=host_bytes), self.answers.put)

    def ask(self, effect: SaveKV | UnpackKV) -> object:
        self.effects.perform(effect)
        return self.answers.get(timeout=60)

    def image(self, session: int, pages: int) -> list[bytes]:
        """An image of pages whose bytes differ."""
        self.runner.kv[2 : 2 + pages] = range(100, 100 + self.runner.kv.shape[1])
        self.runner.kv[2 : 2 + pages, 0] = range(pages)
        wanted = tuple(range(2, 2 + pages))
        assert self.ask(SaveKV(session=session, first=0, pages=wanted)) == KVSaved(session=session, pages=pages)
        return [self.runner.read_pages([page]).wait() for page in wanted]


@pytest.fixture
def desks() -> Iterator[tuple[Desk, Desk]]:
    both = Desk(), Desk()
    yield both
    for desk in both:
        desk.effects.close()


def moved(source: Desk, target: Desk) -> None:
    """What the actors do."""
    parcel = source.effects.parcels.take("p", 10.0)
    assert parcel is not None
    target.effects.parcels.put("p", parcel)


def test_an_image_is_the_same_on_the_other_worker(desks: tuple[Desk, Desk]) -> None:
    """T5: and is gone from the one it came from; the other's session may have any number."""
    source, target = desks
    pages = source.image(7, 40)
    source.effects.perform(PackKV(session=7, parcel="p"))
    moved(source, target)
    assert source.effects.stats()["images"] == 0
    assert target.ask(UnpackKV(session=3, parcel="p")) == KVSaved(session=3, pages=40)
    assert b"".join(target.effects._images.read(3, 0, 40)) == b"".join(pages)
    assert len(source.effects.parcels) == len(target.effects.parcels) == 0


def test_pages_of_another_model_are_not_taken(desks: tuple[Desk, Desk]) -> None:
    """T5, K7: whatever they are called."""
    source, target = desks
    source.image(7, 4)
    source.effects.perform(PackKV(session=7, parcel="p"))
    parcel = source.effects.parcels.take("p", 10.0)
    assert parcel is not None
    target.effects.parcels.put("p", Parcel("another model", parcel.pieces))
    assert target.ask(UnpackKV(session=3, parcel="p")) == KVSaved(session=3, pages=0)
    assert target.effects.stats()["images"] == 0


def test_what_did_not_come_and_what_is_not_wanted(desks: tuple[Desk, Desk]) -> None:
    """T5: an unpacking is always answered; a parcel that is thrown away needs no answer."""
    source, target = desks
    assert target.ask(UnpackKV(session=3, parcel="never")) == KVSaved(session=3, pages=0)
    source.image(7, 4)
    source.effects.perform(PackKV(session=7, parcel="p"))
    moved(source, target)
    target.effects.perform(UnpackKV(session=0, parcel="p"))
    assert target.ask(UnpackKV(session=4, parcel="p")) == KVSaved(session=4, pages=0)
    assert len(target.effects.parcels) == 0


def test_as_much_is_taken_as_there_is_room_for(desks: tuple[Desk, Desk]) -> None:
    """K7, T5: within the budget of the worker it comes to."""
    source, _ = desks
    small = Desk(host_bytes=10 * source.runner.info.page_bytes)
    try:
        source.image(7, 40)
        source.effects.perform(PackKV(session=7, parcel="p"))
        moved(source, small)
        assert small.ask(UnpackKV(session=3, parcel="p")) == KVSaved(session=3, pages=10)
    finally:
        small.effects.close()


def test_nobody_comes_for_a_parcel() -> None:
    now = [0.0]
    parcels = Parcels(lambda: now[0])
    parcels.put("old", Parcel("f", (b"x",)))
    now[0] = KEEP_S - 1
    parcels.put("new", Parcel("f", (b"y",)))
    now[0] = KEEP_S + 1
    assert len(parcels) == 1
    assert parcels.take("old") is None
    assert parcels.take("new") == Parcel("f", (b"y",))
    assert parcels.take("new") is None


def test_a_parcel_is_waited_for_while_it_is_packed() -> None:
    parcels = Parcels()
    timer = threading.Timer(0.05, parcels.put, ("p", Parcel("f", (b"x",))))
    timer.start()
    assert parcels.take("p", 10.0) == Parcel("f", (b"x",))
    timer.join()
