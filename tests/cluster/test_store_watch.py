"""The store's figures in /v1/stats: those of now, or why not."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from actors.messages import SessionMode
from actors.records import StoreError
from cluster.store.offload import OffloadedStore
from cluster.store.service import StoreService
from cluster.store.sqlite import SqliteStore
from cluster.store_watch import StoreWatch


class Stuck:
    """A store that answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers = threading.Event()

    def figures(self) -> dict[str, object]:
        self.asked += 1
        self.answers.wait(60)
        return {"sessions": 7}


class Failing:
    def figures(self) -> dict[str, object]:
        raise StoreError("the disk is gone")


def test_rows_and_bytes_follow_what_is_stored(tmp_path: Path) -> None:
    service = StoreService(f"sqlite:{tmp_path / 's.sqlite'}")
    options = {"owner": "w", "mode": SessionMode.TREE, "idle_timeout_s": None, "capacity_tokens": None, "now": 1.0}
    _, record = service.answer("create", ("t", "s"), options)
    kind, figures = service.answer("figures", (), {})
    assert (kind, figures["sessions"], figures["turns"]) == ("ok", 1, 0)
    assert figures["journal_bytes"] > 0
    assert figures["process"]["threads"] != 0
    service.answer("close", ("t", "s", record.generation), {})
    assert service.answer("figures", (), {})[1]["sessions"] == 0
    service.shut()


def test_a_store_that_is_shut_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.sqlite")
    watched = OffloadedStore(store)
    watch = StoreWatch(watched)
    assert asyncio.run(watch.figures(5))["sessions"] == 0
    store.shut()
    figures = asyncio.run(watch.figures(5))
    watched.close()
    assert figures["sessions"] == 0
    assert "closed" in str(figures["error"])


def test_a_store_that_does_not_answer_is_asked_once_and_waited_for_briefly() -> None:
    stuck = Stuck()
    offloaded = OffloadedStore(stuck)  # type: ignore[arg-type]
    watch = StoreWatch(offloaded)

    async def ask() -> list[dict[str, object]]:
        silent = [await watch.figures(0.01) for _ in range(20)]
        stuck.answers.set()
        return [*silent, await watch.figures(10)]

    answers = asyncio.run(ask())
    offloaded.close()
    assert all("does not answer" in str(answer["error"]) for answer in answers[:-1])
    assert answers[-1] == {"sessions": 7}
    assert stuck.asked == 1


def test_a_failing_store_is_no_reason_to_have_no_stats() -> None:
    offloaded = OffloadedStore(Failing())  # type: ignore[arg-type]
    assert asyncio.run(StoreWatch(offloaded).figures(5)) == {"error": "the disk is gone"}
    offloaded.close()
