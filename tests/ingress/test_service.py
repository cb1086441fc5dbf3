"""Sessions, aborts, models, health, metrics and stats over scripted workers."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

import pytest

from actors.ingress.aborts_api import Found, merged, read_abort
from actors.ingress.errors import ApiError
from actors.ingress.routing import Call, Target
from actors.ingress.validate import Fields
from actors.messages import Abort, AbortHit, AbortReport, Reason, SamplingParams, Stage, Submit
from actors.ports import NoWorker
from tests.ingress.asgi import eventually, run
from tests.ingress.harness import edge
from tests.ingress.scripted import says

IDS = ["日本語-🙂", "a b", "../../x", "%2e%2e%2f", "{rid}", "%s%n", "'; DROP", "x" * 256]


def test_session_ids_are_text_in_every_route() -> None:
    """S13: field case N33: opened, got, listed byte for byte, closed, and gone."""

    async def check() -> None:
        async with edge(says("x")) as at:
            for session_id in IDS:
                made = await at.client.post("/v1/sessions", {"id": session_id, "mode": "tree"})
                assert made.json()["id"] == session_id
            listed = (await at.client.get("/v1/sessions")).json()
            assert [row["id"] for row in listed["data"]] == sorted(IDS)
            for session_id in IDS:
                path = f"/v1/sessions/{quote(session_id, safe='')}"
                got = (await at.client.get(path)).json()
                assert (got["id"], got["mode"], got["epoch"], got["worker"]) == (session_id, "tree", 1, "w1")
                assert (await at.client.start("DELETE", path).whole()).status == 200
                assert (await at.client.start("DELETE", path).whole()).status == 404
                assert (await at.client.get(path)).status == 404

    run(check())


@pytest.mark.parametrize("session_id", ["", "x" * 257, "a\nb", "a\x00b", "x" * 2**20, 5])
def test_unfit_session_ids_are_refused_by_name(session_id: object) -> None:
    """S13: field case N33."""

    async def check() -> None:
        async with edge() as at:
            call = await at.client.post("/v1/sessions", {"id": session_id})
            assert (call.status, call.json()["error"]["param"]) == (400, "id")
            assert at.pool.sessions == {}

    run(check())


def test_opening_twice_is_refused_and_an_id_is_made_when_none_is_given() -> None:
    """S14."""

    async def check() -> None:
        async with edge() as at:
            made = (await at.client.post("/v1/sessions")).json()
            assert made["id"].startswith("sess-")
            again = await at.client.post("/v1/sessions", {"id": made["id"]})
            assert (again.status, again.json()["error"]["reason"]) == (409, "session_exists")
            wrong = await at.client.post("/v1/sessions", {"mode": "linear"})
            assert (wrong.status, wrong.json()["error"]["param"]) == (400, "mode")

    run(check())


def test_lists_come_in_pages() -> None:
    async def check() -> None:
        async with edge() as at:
            for name in "abcde":
                await at.client.post("/v1/sessions", {"id": name})
            first = (await at.client.get("/v1/sessions?limit=2")).json()
            rest = (await at.client.get(f"/v1/sessions?limit=3&after={first['last_id']}")).json()
            assert [row["id"] for row in first["data"] + rest["data"]] == list("abcde")
            assert (first["has_more"], rest["has_more"]) == (True, False)
            for limit in ("0", "x", "-1", "99999999999"):
                assert (await at.client.get(f"/v1/sessions?limit={limit}")).json()["error"]["param"] == "limit"

    run(check())


def test_a_close_mode_is_checked() -> None:
    """S9."""

    async def check() -> None:
        async with edge() as at:
            await at.client.post("/v1/sessions", {"id": "s"})
            wrong = await at.client.start("DELETE", "/v1/sessions/s?mode=softly").whole()
            assert (wrong.status, wrong.json()["error"]["param"]) == (400, "mode")
            body = await at.client.start("DELETE", "/v1/sessions/s", {"mode": "abort"}).whole()
            assert body.json()["closed"] is True

    run(check())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "rid"),
        ({"rid": 5}, "rid"),
        ({"rids": ["a", ""]}, "rids[1]"),
        ({"all": "yes"}, "all"),
        ({"rids": "a"}, "rids"),
    ],
)
def test_an_abort_must_say_what(body: dict[str, object], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_abort(Fields(body))
    assert caught.value.param == param


def test_selectors_add_up() -> None:
    message = read_abort(Fields({"rid": "a", "rids": ["b"], "session": "s", "prefix": "p"}))
    assert (message.rids, message.session_id, message.rid_prefix, message.all) == (("a", "b"), "s", "p", False)


def test_reports_of_all_workers_become_one() -> None:
    """A4: what was hit and where, what had ended, what nobody knows, and who did not answer."""
    found = [
        Found("w1", AbortReport(hit=(AbortHit(rid="a", key="k", stage=Stage.DECODE),), unknown=("b", "c", "d"))),
        Found("w2", AbortReport(already_ended=("b",), unknown=("a", "c", "d")), asked=("a", "b", "c", "d")),
        Found("w3", None),
        Found("w4", None, silent=True),
    ]
    parked = Submit(key="", rid="d", ingress="", tenant="", input_ids=(), sampling=SamplingParams())
    assert merged(Abort(rids=("a", "b", "c", "d")), [parked], found) == {
        "object": "abort.report",
        "hit": [{"rid": "d", "stage": "routing", "worker": None}, {"rid": "a", "stage": "decode", "worker": "w1"}],
        "already_ended": ["b"],
        "unknown": ["c"],
        "unreachable": ["w4"],
    }


def test_unknown_rids_are_remembered_only_after_nobody_knew_them() -> None:
    """A2, A5: first everybody is asked, then told to remember what nobody knew."""

    async def check() -> None:
        async with edge(workers=2) as at:
            call = await at.client.post("/v1/aborts", {"rids": ["x"]})
            assert call.status == 200
            assert call.json()["unknown"] == ["x"]
            for worker in at.pool.workers.values():
                assert [(abort.rids, abort.remember) for abort in worker.aborts] == [(("x",), False), (("x",), True)]

    run(check())


def test_an_abort_reaches_the_workers_though_the_pool_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A3: the pool is not on the way."""

    async def check() -> None:
        async with edge() as at:
            call = at.client.chat()
            await at.worker.submitted.wait()

            async def silent() -> None:
                await asyncio.Event().wait()

            monkeypatch.setattr("actors.ingress.routing.POOL_SOON_S", 0.02)
            monkeypatch.setattr(at.pool, "members", silent)
            assert (await at.client.post("/v1/aborts", {"all": True})).status == 200
            assert [abort.all for abort in at.worker.aborts] == [True]
            call.disconnect()
            await call.whole()

    run(check())


def test_a_parked_request_can_be_aborted() -> None:
    """A1: 200 with finish_reason abort, though no worker ever had it."""

    async def check() -> None:
        async with edge() as at:
            at.pool.ready = False
            call = at.client.chat(rid="job-1")
            other = at.client.chat(rid="job-10")
            await eventually(lambda: len(at.ingress.router.running) == 2)
            report = (await at.client.post("/v1/aborts", {"rid": "job-1"})).json()
            assert report["hit"] == [{"rid": "job-1", "stage": "routing", "worker": None}]
            await call.whole()
            assert call.status == 200
            assert call.json()["choices"][0]["finish_reason"] == "abort"
            assert not other.task.done()

    run(check())


def test_an_abort_that_meets_the_pools_answer_is_not_lost() -> None:
    """A1, A7: `wait_for` swallows a cancellation that comes with its result (before Python 3.12)."""

    async def check() -> None:
        async with edge() as at:
            answer: asyncio.Future[Target] = asyncio.get_running_loop().create_future()
            asked = asyncio.Event()

            async def target(call: Call, avoid: str | None) -> Target:
                asked.set()
                return await answer

            at.ingress.router.target = target  # type: ignore[method-assign]
            call = at.client.chat(rid="job")
            await asked.wait()
            answer.set_exception(NoWorker("none is ready"))
            await asyncio.sleep(0)
            (running,) = at.ingress.router.running
            running.end_here(Reason.CLIENT_ABORT, "Aborted by the client.")
            await asyncio.wait_for(call.whole(), 60)
            assert call.json()["choices"][0]["finish_reason"] == "abort"

    run(check())


def test_models_health_and_the_small_routes() -> None:
    async def check() -> None:
        async with edge(workers=2) as at:
            models = (await at.client.get("/v1/models")).json()
            assert [model["id"] for model in models["data"]] == ["toy"]
            assert (await at.client.get("/v1/models/toy")).json()["object"] == "model"
            assert (await at.client.get("/v1/models/none")).json()["error"]["code"] == "model_not_found"
            assert (await at.client.get("/health")).json()["workers"] == {"ready": 2, "total": 2}
            assert (await at.client.get("/")).json()["name"] == "remora"
            assert (await at.client.start("HEAD", "/").whole()).status == 200
            stats = (await at.client.get("/v1/stats")).json()
            assert [worker["id"] for worker in stats["workers"]] == ["w1", "w2"]
            assert stats["ingress"]["open_requests"] == 0

    run(check())


def test_health_needs_a_ready_worker_and_outlives_a_silent_pool_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        async with edge() as at:
            at.pool.ready = False
            assert (await at.client.get("/health")).status == 503
        async with edge() as at:

            async def silent() -> list[object]:
                await asyncio.Event().wait()
                return []

            monkeypatch.setattr("actors.ingress.routing.POOL_ANSWER_S", 0.02)
            known = at.pool.members
            monkeypatch.setattr(at.pool, "members", silent)
            assert (await at.client.get("/health")).status == 503
            monkeypatch.setattr(at.pool, "members", known)
            assert (await at.client.get("/health")).json()["pool"] == "ok"
            monkeypatch.setattr(at.pool, "members", silent)
            told = await at.client.get("/health")
            assert (told.status, told.json()["pool"]) == (200, "silent")

    run(check())


def test_the_counters_add_up_to_the_requests_received() -> None:
    """E6: field cases N54, N71: every request once; tokens as in the usages; no ids among the labels."""

    async def check() -> None:
        async with edge(says("four")) as at:
            await at.client.chat(rid="secret-rid").whole()
            await at.client.chat(stream=True).whole()
            await at.client.chat(n=0).whole()
            await at.client.chat(session={"id": "secret-session"}).whole()
            text = (await at.client.get("/metrics")).body.decode()
            assert "remora_requests_received_total 4.0" in text
            assert 'remora_requests_ended_total{outcome="stop",reason="",stage=""} 2.0' in text
            assert 'remora_requests_ended_total{outcome="abort",reason="invalid",stage="ingress"} 1.0' in text
            assert 'remora_requests_ended_total{outcome="abort",reason="session_unknown",stage="routing"} 1.0' in text
            assert sum(at.ends().values()) == 4
            assert 'remora_tokens_total{kind="completion"} 8.0' in text
            assert "remora_requests_in_flight 0.0" in text
            assert "secret" not in text

    run(check())
