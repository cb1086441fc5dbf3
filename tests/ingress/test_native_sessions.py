"""Sessions over SGLang's own API: /open_session, `session_params` of /generate, /close_session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.messages import Reason
from actors.runner.toy import toy_continuation
from tests.ingress.asgi import Call, Client, run
from tests.ingress.keyed import ACME, GLOBEX, Keyed, keys
from tests.ingress.local import Cluster, cluster

GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


def says(prompt: str, count: int = 6) -> str:
    return bytes(toy_continuation(list(prompt.encode()), count)).decode()


async def turn(client: Client, text: Any, name: str | None = None, **params: Any) -> Call:
    """`name`: its rid. `params`: of `session_params`."""
    body = {"text": text, "rid": name, "sampling_params": GREEDY, "session_params": {"id": "s", **params}}
    return await client.start("POST", "/generate", body).whole()


@asynccontextmanager
async def opened(folder: Path, **fields: Any) -> AsyncIterator[Cluster]:
    async with cluster(folder, workers=2) as at:
        call = await at.client.post("/open_session", {"capacity_of_str_len": 1000, "session_id": "s", **fields})
        assert (call.status, call.json()) == (200, "s")
        yield at


def test_opening_gives_an_id_and_refuses_one_that_is_open(tmp_path: Path) -> None:
    """S14: session cases B01, B02: the answer is the id as a JSON string."""

    async def check() -> None:
        async with opened(tmp_path) as at:
            made = (await at.client.post("/open_session", {"capacity_of_str_len": 1000})).json()
            assert isinstance(made, str)
            assert made != "s"
            assert (await at.client.get(f"/v1/sessions/{made}")).json()["mode"] == "tree"
            again = await at.client.post("/open_session", {"capacity_of_str_len": 10, "session_id": "s"})
            assert (again.status, again.json()["error"]["reason"]) == (409, "session_exists")

    run(check())


def test_its_settings_are_the_sessions(tmp_path: Path) -> None:
    async def check() -> None:
        async with opened(tmp_path, streaming=True, timeout=7.5) as at:
            found = (await at.client.get("/v1/sessions/s")).json()
            assert (found["mode"], found["idle_timeout_s"], found["capacity_tokens"]) == ("streaming", 7.5, None)

    run(check())


def test_turns_go_on_from_the_turn_they_name(tmp_path: Path) -> None:
    """S3, S4, K1: session cases N01, N02, N03: appending, branching, and a new root without a name."""

    async def check() -> None:
        async with opened(tmp_path) as at:
            first = (await turn(at.client, "one", "r1")).json()
            assert first["text"] == says("one")
            second = (await turn(at.client, "two", "r2", rid="r1")).json()
            context = "one" + first["text"]
            assert second["text"] == says(context + "two")
            meta = second["meta_info"]
            assert (meta["prompt_tokens"], meta["session"]["turn"]) == (len(context) + 3, 2)
            assert meta["cached_tokens"] in (len(context), len(context) - 1)
            branch = (await turn(at.client, "three", "r3", rid="r1")).json()
            assert branch["text"] == says(context + "three")
            assert (await turn(at.client, "root", "r4")).json()["text"] == says("root")

    run(check())


def test_where_the_input_is_spliced(tmp_path: Path) -> None:
    """S3: session cases N09, N12, N04: offset, drop_previous_output, replace."""

    async def check() -> None:
        async with opened(tmp_path) as at:
            first = (await turn(at.client, "one", "r1")).json()["text"]
            cut = (await turn(at.client, "x", "r2", rid="r1", offset=-1)).json()
            assert cut["text"] == says(("one" + first)[:-1] + "x")
            dropped = (await turn(at.client, "y", "r3", rid="r1", drop_previous_output=True)).json()
            assert dropped["text"] == says("oney")
            replaced = (await turn(at.client, "z", "r4", rid="r1", replace=True)).json()
            assert replaced["text"] == says("one" + first + "z")
            gone = await turn(at.client, "w", rid="r2")
            assert (gone.status, gone.json()["error"]["reason"]) == (404, "parent_unknown")
            assert gone.json()["error"]["param"] == "session_params.rid"

    run(check())


def test_empty_input_goes_on_generating(tmp_path: Path) -> None:
    """S4: session cases N15, N16: with history only."""

    async def check() -> None:
        async with opened(tmp_path) as at:
            first = (await turn(at.client, "one", "r1")).json()["text"]
            for body in ({}, {"input_ids": []}, {"text": ""}):
                asked = {"sampling_params": GREEDY, "session_params": {"id": "s", "rid": "r1"}, **body}
                assert (await at.client.post("/generate", asked)).json()["text"] == says("one" + first)
                without = {"sampling_params": GREEDY, "session_params": {"id": "s"}, **body}
                assert (await at.client.post("/generate", without)).status == 400

    run(check())


def test_a_streaming_session_knows_one_place_only(tmp_path: Path) -> None:
    """S3: session cases S04, S05: the parent's name is ignored, what only trees can is refused."""

    async def check() -> None:
        async with opened(tmp_path, streaming=True) as at:
            first = (await turn(at.client, "one", "r1")).json()["text"]
            second = (await turn(at.client, "two", "r2", rid="whatever")).json()
            assert second["text"] == says("one" + first + "two")
            for field, value in (("replace", True), ("drop_previous_output", True), ("offset", 2)):
                refused = await turn(at.client, "x", **{field: value})
                assert (refused.status, refused.json()["error"]["param"]) == (400, f"session_params.{field}")
            third = await turn(at.client, "three", "r3", offset=0)
            assert third.json()["text"] == says("one" + first + "two" + second["text"] + "three")

    run(check())


def test_a_session_id_alone_goes_on_at_the_head(tmp_path: Path) -> None:
    """P5: identity asked for with one field; it needs an open session all the same (S14, T6)."""

    async def check() -> None:
        async with opened(tmp_path) as at:
            body = {"text": "one", "sampling_params": GREEDY, "session_id": "s"}
            first = (await at.client.post("/generate", body)).json()["text"]
            second = (await at.client.post("/generate", {**body, "text": "two"})).json()
            assert second["text"] == says("one" + first + "two")
            unknown = await at.client.post("/generate", {**body, "session_id": "nobody"})
            assert (unknown.status, unknown.json()["error"]["param"]) == (404, "session_id")

    run(check())


def test_a_batch_or_several_replies_are_no_turn(tmp_path: Path) -> None:
    """S3: session case S23: refused at once, and nothing of the session changes (S7)."""

    async def check() -> None:
        async with opened(tmp_path, streaming=True) as at:
            two = {"text": ["a", "b"], "session_params": {"id": "s"}}
            several = {"text": "a", "session_params": {"id": "s"}, "sampling_params": {"n": 2}}
            for body, param in ((two, "text"), (several, "sampling_params.n")):
                call = await at.client.post("/generate", body)
                assert (call.status, call.json()["error"]["param"]) == (400, param)
            assert (await at.client.get("/v1/sessions/s")).json()["turns"] == 0

    run(check())


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_session_refuses_has_a_status_of_its_own(tmp_path: Path, stream: bool) -> None:
    """E3: where SGLang answers 400 to everything."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            body = {"text": "x", "session_params": {"id": "s"}, "stream": stream}
            call = await at.client.post("/generate", body)
            assert (call.status, call.json()["error"]["reason"]) == (404, "session_unknown")
            assert call.json()["error"]["param"] == "session_params.id"

    run(check())


def test_a_second_turn_while_one_runs_is_refused(tmp_path: Path) -> None:
    """S6: session case S06: a retry is welcome."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.002) as at:
            await at.client.post("/open_session", {"capacity_of_str_len": 1, "session_id": "s"})
            long = {
                "text": "x",
                "stream": True,
                "session_params": {"id": "s"},
                "sampling_params": {"max_new_tokens": 4000},
            }
            running = at.client.start("POST", "/generate", long)
            await running.until("text")
            refused = await turn(at.client, "y")
            assert (refused.status, refused.headers["x-should-retry"]) == (409, "true")
            running.disconnect()
            await running.whole()

    run(check())


def test_log_probabilities_from_beyond_the_restored_prompt_are_refused(tmp_path: Path) -> None:
    """The session case N18: by name, and the session is unharmed; what is within is told."""

    async def check() -> None:
        async with opened(tmp_path) as at:
            await turn(at.client, "one", "r1")
            body = {"text": "x", "sampling_params": GREEDY, "session_params": {"id": "s", "rid": "r1"}}
            for start in (-2, 10**6):
                asked = {**body, "return_logprob": True, "logprob_start_len": start}
                refused = await at.client.post("/generate", asked)
                assert (refused.status, refused.json()["error"]["param"]) == (400, "logprob_start_len")
            assert (await at.client.get("/v1/sessions/s")).json()["turns"] == 1
            told = (await at.client.post("/generate", {**body, "return_logprob": True})).json()["meta_info"]
            assert len(told["output_token_logprobs"]) == told["completion_tokens"] == 6

    run(check())


def test_closing_says_what_was_freed(tmp_path: Path) -> None:
    """S9: session cases B05, B06, B07: where SGLang says 200 to everything, an unknown id is 404."""

    async def check() -> None:
        async with opened(tmp_path) as at:
            await turn(at.client, "one", "r1")
            closed = await at.client.post("/close_session", {"session_id": "s"})
            assert (closed.status, closed.json()["turns"]) == (200, 1)
            assert closed.json()["freed_tokens"] > 0
            again = await at.client.post("/close_session", {"session_id": "s"})
            assert (again.status, again.json()["error"]["reason"]) == (404, Reason.SESSION_UNKNOWN.value)
            assert (await turn(at.client, "x")).status == 404
            await at.client.post("/open_session", {"session_id": "s"})
            assert (await turn(at.client, "x", rid="r1")).status == 404

    run(check())


def test_native_sessions_are_the_tenants_own(tmp_path: Path) -> None:
    """S13: the same name is two sessions."""

    async def check() -> None:
        async with cluster(tmp_path, auth=keys()) as at:
            acme, globex = Keyed(at.ingress, ACME), Keyed(at.ingress, GLOBEX)
            for client in (acme, globex):
                assert (await client.post("/open_session", {"session_id": "s"})).status == 200
            assert (await turn(acme, "one", "r1")).status == 200
            assert (await turn(globex, "x", rid="r1")).status == 404
            assert (await globex.post("/close_session", {"session_id": "s"})).json()["turns"] == 0
            assert (await acme.get("/v1/sessions/s")).json()["turns"] == 1

    run(check())
