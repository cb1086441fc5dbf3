"""POST /v1/sessions/{id}/fork and …/rollback (rule S12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from actors.messages import Reason, SessionMode, SessionRolledBack
from tests.ingress.asgi import Call, eventually, run
from tests.ingress.harness import edge
from tests.ingress.local import Cluster, cluster
from tests.ingress.test_with_workers import chat, idle, reply, text_of


async def opened(at: Cluster, session_id: str, contents: list[str], **fields: Any) -> tuple[list[str], list[str]]:
    """A session with a turn for each text. (rids, contexts as text), the contexts beginning with the empty one."""
    await at.client.post("/v1/sessions", {"id": session_id, **fields})
    rids, contexts = [], [""]
    for content in contents:
        answer = await chat(at, content, session={"id": session_id}).whole()
        rids.append(answer.json()["id"])
        contexts.append(contexts[-1] + ("\n" if contexts[-1] else "") + asked(content) + text_of(answer))
    return rids, contexts


def asked(content: str) -> str:
    return f"user: {content}\nassistant: "


async def post(at: Cluster, session_id: str, verb: str, body: object = None) -> Call:
    return await at.client.post(f"/v1/sessions/{quote(session_id, safe='')}/{verb}", body)


def refused(call: Call) -> tuple[int, str, str | None]:
    error = call.json()["error"]
    assert set(error) == {"message", "type", "code", "param", "reason", "stage", "retryable", "request_id"}, "E4"
    return call.status, error["reason"], error["param"]


@pytest.mark.parametrize("mode", list(SessionMode))
@pytest.mark.parametrize("workers", [1, 2])
def test_fork_diverge_roll_back_and_close(tmp_path: Path, mode: SessionMode, workers: int) -> None:
    """S12, case N32: over HTTP, in both modes."""

    async def check() -> None:
        async with cluster(tmp_path, workers=workers) as at:
            rids, contexts = await opened(at, "s/1", ["one", "two", "three"], mode=mode.value)
            made = (await post(at, "s/1", "fork", {"id": "f", "turn": rids[1]})).json()
            assert (made["id"], made["object"], made["mode"]) == ("f", "session", mode.value)
            assert (made["turns"], made["head"], made["tokens"]) == (2, rids[1], len(contexts[2]))
            source = (await at.client.get("/v1/sessions/" + quote("s/1", safe=""))).json()
            assert (made["worker"], made["epoch"]) == (source["worker"], 1)
            assert made["generation"] > source["generation"]

            mine = chat(at, "mine", session={"id": "s/1"})
            theirs = chat(at, "theirs", session={"id": "f"})
            assert text_of(await mine.whole()) == reply(contexts[3] + "\n" + asked("mine"), 8)
            forked = await theirs.whole()
            assert text_of(forked) == reply(contexts[2] + "\n" + asked("theirs"), 8)
            usage = forked.json()["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= len(contexts[2]) // 16 * 16
            assert forked.json()["session"] == {"id": "f", "turn": 3, "worker": made["worker"]}

            back = (await post(at, "s/1", "rollback", {"turn": rids[0]})).json()
            assert (back["id"], back["turns"], back["head"], back["dropped_turns"]) == ("s/1", 1, rids[0], 3)
            assert (back["state"], back["tokens"]) == ("idle", len(contexts[1]))
            again = await chat(at, "again", session={"id": "s/1"}).whole()
            assert text_of(again) == reply(contexts[1] + "\n" + asked("again"), 8)

            await at.client.start("DELETE", "/v1/sessions/" + quote("s/1", safe="")).whole()
            context = contexts[2] + "\n" + asked("theirs") + text_of(forked) + "\n"
            assert text_of(await chat(at, "last", session={"id": "f"}).whole()) == reply(context + asked("last"), 8)
            await at.client.start("DELETE", "/v1/sessions/f").whole()
            await idle(at)
            assert all(at.pages(worker)["session_held"] == 0 for worker in at.pool.workers)

    run(check())


def test_a_fork_needs_neither_a_body_nor_a_name(tmp_path: Path) -> None:
    """S12: from the head then, under a name of the server's."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            rids, _ = await opened(at, "s", ["one"])
            made = (await post(at, "s", "fork")).json()
            assert made["id"].startswith("sess-")
            assert (made["head"], made["turns"]) == (rids[0], 1)
            listed = (await at.client.get("/v1/sessions")).json()["data"]
            assert sorted(row["id"] for row in listed) == sorted(["s", made["id"]])

    run(check())


def test_a_turn_of_the_original_can_be_named_in_the_fork(tmp_path: Path) -> None:
    """S3, S12: rids stay valid."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            rids, contexts = await opened(at, "s", ["one", "two"])
            await post(at, "s", "fork", {"id": "f"})
            branch = await chat(at, "new", session={"id": "f", "parent": rids[0]}).whole()
            assert text_of(branch) == reply(contexts[1] + "\n" + asked("new"), 8)

    run(check())


def test_a_running_turn_refuses_a_rollback_and_allows_a_fork(tmp_path: Path) -> None:
    """S12, E3: 409; the turn is not disturbed."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.005) as at:
            rids, contexts = await opened(at, "s", ["one", "two"])
            running = chat(at, "long", max_tokens=60, session={"id": "s"})
            await eventually(lambda: at.shell().stats()["running"])
            assert refused(await post(at, "s", "rollback", {"turn": rids[0]})) == (409, "session_busy", None)
            made = (await post(at, "s", "fork", {"id": "f"})).json()
            assert made["head"] == rids[1]
            assert text_of(await running.whole()) == reply(contexts[2] + "\n" + asked("long"), 60)
            assert (await at.client.get("/v1/sessions/s")).json()["turns"] == 3

    run(check())


def test_refusals_name_what_is_wrong(tmp_path: Path) -> None:
    """E3, E4, S13, I1."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            await opened(at, "s", ["one"])
            await opened(at, "empty", [])
            for session, verb, body, wanted in [
                ("none", "fork", {}, (404, "session_unknown", "session_id")),
                ("none", "rollback", {"turn": "r"}, (404, "session_unknown", "session_id")),
                ("s", "fork", {"id": "empty"}, (409, "session_exists", "id")),
                ("s", "fork", {"turn": "nope"}, (404, "parent_unknown", "turn")),
                ("empty", "fork", {}, (404, "parent_unknown", "turn")),
                ("s", "rollback", {"turn": "nope"}, (404, "parent_unknown", "turn")),
                ("s", "rollback", {}, (400, "invalid", "turn")),
                ("s", "rollback", {"turn": 7}, (400, "invalid", "turn")),
                ("s", "fork", {"id": "a\nb"}, (400, "invalid", "id")),
                ("s", "fork", {"id": ""}, (400, "invalid", "id")),
                ("s", "fork", {"turn": ["r"]}, (400, "invalid", "turn")),
                ("s", "fork", [], (400, "invalid", None)),
            ]:
                assert refused(await post(at, session, verb, body)) == wanted, (session, verb, body)
            assert (await at.client.get("/v1/sessions/s")).json()["turns"] == 1
            assert len((await at.client.get("/v1/sessions")).json()["data"]) == 2
            assert (await at.client.get("/v1/sessions/s/fork")).status == 404

    run(check())


@pytest.mark.parametrize(
    ("reason", "status"),
    [(Reason.SESSION_CLOSING, 409), (Reason.INTERNAL, 500), (Reason.SESSION_BUSY, 409)],
)
def test_what_the_owner_says_of_a_rollback_is_answered(reason: Reason, status: int) -> None:
    """E3: and what went wrong inside stays inside."""

    async def check() -> None:
        async with edge() as at:
            await at.client.post("/v1/sessions", {"id": "s"})
            at.pool.rollback = SessionRolledBack(reason=reason, message="the disk of store-7 is full")
            call = await at.client.post("/v1/sessions/s/rollback", {"turn": "r"})
            assert (call.status, call.json()["error"]["reason"]) == (status, reason.value)
            assert ("store-7" in call.json()["error"]["message"]) is (reason is not Reason.INTERNAL)

    run(check())
