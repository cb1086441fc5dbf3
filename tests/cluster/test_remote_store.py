"""The store through a link that breaks, and the pool as an ingress sees it."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

from actors.messages import Abort, SessionMode
from actors.ports import Member, NoWorker, SessionLimit, WorkerGone
from actors.records import SessionExists, SessionRecord, SessionUnknown, StoreError
from cluster.answers import DOWN, EXPECTED, OK, Answer, refusal, unwrap
from cluster.serve_pool import GoneWorker, ServePool
from cluster.store.remote import RemoteStore
from cluster.store.service import StoreService


class Link:
    """To a service in this process; `breaks` says how the next calls break: before the service does what it is asked
    ("before"), or after ("after")."""

    def __init__(self, service: StoreService, *breaks: str) -> None:
        self.service = service
        self.breaks = list(breaks)
        self.calls = 0

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        self.calls += 1
        how = self.breaks.pop(0) if self.breaks else ""
        if how == "before":
            return DOWN, "the store's process has died"
        answer: Answer = pickle.loads(pickle.dumps(self.service.answer(method, args, kwargs)))
        return (DOWN, "no answer came") if how == "after" else answer


@pytest.fixture
def service(tmp_path: Path) -> Any:
    made = StoreService(f"sqlite:{tmp_path / 's.sqlite'}")
    yield made
    made.shut()


def create(store: RemoteStore) -> SessionRecord:
    return store.create("t", "s", owner="w", mode=SessionMode.TREE, idle_timeout_s=None, capacity_tokens=None, now=1.0)


def test_results_and_refusals_cross_as_what_they_are(service: StoreService) -> None:
    store = RemoteStore(Link(service), patience_s=0.0)
    made = create(store)
    assert store.get("t", "s") == made
    with pytest.raises(SessionExists):
        create(store)
    with pytest.raises(SessionUnknown):
        store.get("t", "other")
    assert store.acquire("t", "s", owner="w2", expected_epoch=1).epoch == 2
    assert (store.count("t"), store.owned_by("w2"), store.expired(9.0)) == (1, store.list_sessions("t"), [])
    assert store.close("t", "s", made.generation, epoch=1) is False
    assert store.close("t", "s", made.generation) is True


@pytest.mark.parametrize("how", ["before", "after"])
def test_what_may_be_done_twice_is_tried_again(
    service: StoreService, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1: a turn waits for the store's process to come back."""
    monkeypatch.setattr("cluster.store.remote.RETRY_PAUSE_S", 0.0)
    create(RemoteStore(Link(service), patience_s=0.0))
    link = Link(service, how, how)
    moved = RemoteStore(link, patience_s=5.0).acquire("t", "s", owner="w2", expected_epoch=1)
    assert (moved.owner, moved.epoch, link.calls) == ("w2", 2, 3)


def test_a_create_is_not_tried_again(service: StoreService) -> None:
    link = Link(service, "after")
    with pytest.raises(StoreError, match="no answer"):
        create(RemoteStore(link, patience_s=5.0))
    assert link.calls == 1


def test_patience_ends(service: StoreService) -> None:
    with pytest.raises(StoreError, match="has died"):
        RemoteStore(Link(service, "before"), patience_s=0.0).count("t")


def test_only_the_stores_methods_can_be_called(service: StoreService) -> None:
    assert service.answer("shut", (), {})[0] == "StoreError"


@pytest.mark.parametrize("error", EXPECTED, ids=lambda error: error.__name__)
def test_every_expected_exception_comes_back_as_itself(error: type[Exception]) -> None:
    answer = pickle.loads(pickle.dumps(refusal(error("why"))))
    with pytest.raises(error, match="why"):
        unwrap(answer, when_down=ZeroDivisionError)


class Wire:
    """Answers to calls of the pool, in order."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)

    async def __call__(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        return self.answers.pop(0)


def served(*answers: Answer) -> ServePool:
    return ServePool(Wire(*answers), GoneWorker)


def raised(work: Awaitable[object]) -> Exception | None:
    async def main() -> None:
        await work

    try:
        asyncio.run(main())  # type: ignore[arg-type]
    except Exception as error:
        return error
    return None


def test_a_pool_that_is_away_is_a_lack_of_workers_for_who_may_try_again() -> None:
    options: dict[str, Any] = {"mode": SessionMode.TREE, "idle_timeout_s": None, "capacity_tokens": None}
    down = (DOWN, "restarting")
    assert isinstance(raised(served(down).place("t", "s")), NoWorker)
    assert isinstance(raised(served(down).open_session("t", "s", **options)), NoWorker)
    assert isinstance(raised(served(down).members()), NoWorker)
    assert isinstance(raised(served(down).get_session("t", "s")), StoreError)
    assert isinstance(raised(served(down).list_sessions("t", after="", limit=1)), StoreError)
    assert isinstance(raised(served(down).close_session("t", "s", abort_running=False)), StoreError)
    assert isinstance(raised(served(("SessionLimit", "10")).open_session("t", "s", **options)), SessionLimit)


def test_requests_without_a_session_go_on_while_the_pool_is_away() -> None:
    """The pool is not on the token path."""
    members = [Member("w", "ready", 0)]
    pool = served((OK, members), (DOWN, "restarting"))

    async def main() -> None:
        assert await pool.members() == members
        assert await pool.members() == members

    asyncio.run(main())


def test_a_worker_that_is_no_more_says_so_when_it_is_used() -> None:
    port = served().worker("w")
    port.tell(Abort(keys=("k",)))
    assert isinstance(raised(port.poll("i")), WorkerGone)
    assert isinstance(raised(port.stats()), WorkerGone)
