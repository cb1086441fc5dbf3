"""SGLang's routes for operators: aborts, flushing, pausing, and what a server says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.messages import PauseMode, Submit
from configs import TenantLimits, TimeoutConfig
from tests.ingress.asgi import Call, Client, eventually, run
from tests.ingress.harness import edge
from tests.ingress.keyed import ACME, OPS, Keyed, keys
from tests.ingress.local import cluster
from tests.ingress.scripted import ScriptedWorker, says

LONG = {"temperature": 0, "max_new_tokens": 4000, "ignore_eos": True}


def generate(client: Client, text: Any = "hello", **fields: Any) -> Call:
    return client.start("POST", "/generate", {"text": text, "sampling_params": LONG, **fields})


def test_aborts_meet_names_exactly(tmp_path: Path) -> None:
    """A2, A4: where SGLang takes every name that begins alike; unknown names are no error."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.002) as at:
            one, ten = generate(at.client, rid="job-1", stream=True), generate(at.client, rid="job-10", stream=True)
            await one.until("text")
            await ten.until("text")
            report = (await at.client.post("/abort_request", {"rid": "job-1"})).json()
            assert [(hit["rid"], hit["stage"]) for hit in report["hit"]] == [("job-1", "decode")]
            await one.whole()
            assert one.events[-2]["meta_info"]["finish_reason"]["type"] == "abort"
            assert one.events[-2]["text"]
            assert not ten.task.done()
            unknown = await at.client.post("/abort_request", {"rid": "nobody"})
            assert (unknown.status, unknown.json()["unknown"]) == (200, ["nobody"])
            everything = (await at.client.post("/abort_request", {"abort_all": True, "rid": ""})).json()
            assert [hit["rid"] for hit in everything["hit"]] == ["job-10"]
            await ten.whole()

    run(check())


def test_aborting_all_takes_an_admin_key_here_too() -> None:
    """A1, S13."""

    async def check() -> None:
        async with edge(auth=keys()) as at:
            refused = await Keyed(at.ingress, ACME).post("/abort_request", {"abort_all": True, "rid": "x"})
            assert (refused.status, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
            assert at.worker.aborts == []
            assert (await Keyed(at.ingress, OPS).post("/abort_request", {"abort_all": True})).status == 200

    run(check())


WAYS = [
    ("POST", "/flush_cache"),
    ("GET", "/flush_cache"),
    ("POST", "/pause_generation"),
    ("POST", "/continue_generation"),
]


@pytest.mark.parametrize(("method", "path"), WAYS)
def test_what_concerns_all_takes_an_admin_key(method: str, path: str) -> None:
    """S13: and nothing happens before."""

    async def check() -> None:
        async with edge(auth=keys()) as at:
            refused = await Keyed(at.ingress, ACME).start(method, path).whole()
            assert (refused.status, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
            assert at.pool.pauses == []
            assert (await Keyed(at.ingress, OPS).start(method, path).whole()).status == 200
            assert at.pool.pauses == {"/pause_generation": [PauseMode.ABORT], "/continue_generation": [None]}.get(
                path, []
            )

    run(check())


def test_flushing_frees_what_nobody_runs_with(tmp_path: Path) -> None:
    """K4, K6: shared prefixes and idle sessions' KV; histories stay, so that the next turn costs a prefill only."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            await at.client.post("/open_session", {"session_id": "s"})
            body = {"text": "x" * 100, "session_id": "s", "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
            await at.client.post("/generate", body)
            assert at.pages()["session_held"] > 0
            flushed = await at.client.post("/flush_cache")
            assert flushed.headers["content-type"].startswith("text/plain")
            assert flushed.body.startswith(b"Cache flushed.")
            pages = at.pages()
            assert pages["free"] == pages["total"]
            again = (await at.client.post("/generate", {**body, "text": "y"})).json()
            assert (again["meta_info"]["prompt_tokens"], again["meta_info"]["cached_tokens"]) == (105, 0)

    run(check())


def test_a_worker_that_does_not_flush_is_named(monkeypatch: Any) -> None:
    """E4: the answer never says that it is done where it may not be."""

    class Silent(ScriptedWorker):
        async def ask(self, message: Any) -> object:
            await self.aborted.wait()
            return 0

    async def check() -> None:
        async with edge() as at:
            at.pool.workers["w2"] = Silent("w2")
            call = await at.client.post("/flush_cache")
            assert (call.status, call.json()["error"]["retryable"]) == (503, True)
            assert "w2" in call.json()["error"]["message"]
            at.pool.workers["w2"].die()
            at.pool.workers["w2"].aborted.set()
            assert (await at.client.post("/flush_cache")).status == 200

    monkeypatch.setattr("actors.ingress.native_control.WORKER_ANSWER_S", 0.05)
    run(check())


@pytest.mark.parametrize("mode", [None, "abort", "retract", "in_place"])
def test_paused_generation_goes_on(tmp_path: Path, mode: str | None) -> None:
    """Session case A23: what runs ends, or goes on with the same tokens; what comes waits, and can be aborted."""

    async def check() -> None:
        async with cluster(tmp_path, workers=2, step_s=0.005) as at:
            settings = {"temperature": 0, "max_new_tokens": 60, "ignore_eos": True}
            reference = (await generate(at.client, sampling_params=settings).whole()).json()["text"]
            running = generate(at.client, sampling_params=settings, stream=True)
            await running.until("text")
            paused = await at.client.post("/pause_generation", None if mode is None else {"mode": mode})
            assert paused.json()["status"] == "ok"
            assert sorted(row["id"] for row in paused.json()["workers"]) == ["w1", "w2"]
            waiting, dropped = (
                generate(at.client, "new", sampling_params=LONG | {"max_new_tokens": 4}),
                generate(at.client, rid="d"),
            )
            await eventually(lambda: sum(at.shell(w).stats()["waiting"] for w in ("w1", "w2")) >= 2)  # type: ignore[misc]
            steps = [at.shell(worker).stats()["steps"] for worker in ("w1", "w2")]
            await at.client.post("/abort_request", {"rid": "d"})
            assert (await dropped.whole()).json()["meta_info"]["finish_reason"]["type"] == "abort"
            assert [at.shell(worker).stats()["steps"] for worker in ("w1", "w2")] == steps
            assert not waiting.task.done()
            assert (await at.client.post("/continue_generation")).json()["paused"] is False
            assert (await waiting.whole()).json()["meta_info"]["completion_tokens"] == 4
            last = (await running.whole()).events[-2]
            if mode in (None, "abort"):
                assert last["meta_info"]["finish_reason"]["type"] == "abort"
            else:
                assert last["text"] == reference

    run(check())


def test_a_waiting_timeout_counts_while_it_is_paused(tmp_path: Path) -> None:
    """C1: whoever gave a time has given it, whatever it is spent on."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            await at.client.post("/pause_generation", {"mode": "in_place"})
            call = await generate(at.client, waiting_timeout_s=0.05).whole()
            assert (call.status, call.json()["error"]["reason"]) == (503, "waiting_timeout")

    run(check())


def test_health_is_one_real_token(tmp_path: Path) -> None:
    """200 and nothing else; a worker really computes it."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            call = await at.client.get("/health_generate")
            assert (call.status, call.body) == (200, b"")
            assert at.shell().stats()["output_tokens"] == 1

    run(check())


def test_health_fails_when_no_token_comes() -> None:
    """E3: a status of its own, within the time that a request may take."""

    async def check() -> None:
        async with edge(timeouts=TimeoutConfig(max_deadline_s=0.05)) as at:
            at.pool.ready = False
            call = await at.client.get("/health_generate")
            assert call.status == 503

    run(check())


def test_health_counts_like_any_request() -> None:
    """S10, E6."""

    async def check() -> None:
        limits = {"acme": TenantLimits(requests_per_minute=1)}
        async with edge(says("x"), auth=keys(), tenants=limits) as at:
            acme = Keyed(at.ingress, ACME)
            assert (await acme.get("/health_generate")).status == 200
            assert (await acme.get("/health_generate")).status == 429
            asked: Submit = at.worker.submits[0]
            assert (asked.sampling.max_tokens, len(at.worker.submits)) == (1, 1)

    run(check())


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_the_model_is_described_without_paths(path: str) -> None:
    async def check() -> None:
        async with edge() as at:
            info = (await at.client.get(path)).json()
            assert (info["model_path"], info["tokenizer_path"], info["is_generation"]) == ("toy", "toy", True)

    run(check())


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_workers_are_shown_to_those_who_may_see_them(tmp_path: Path, path: str) -> None:
    """S13: a tenant learns of the server, an operator of its workers; there is always one state to read."""

    async def check() -> None:
        async with cluster(tmp_path, workers=2, auth=keys()) as at:
            own = (await Keyed(at.ingress, ACME).get(path)).json()
            assert own["internal_states"] == [{}]
            assert "max_total_num_tokens" not in own
            assert (own["context_length"], own["served_model_name"]) == (8192, "toy")
            seen = (await Keyed(at.ingress, OPS).get(path)).json()
            assert [state["worker"] for state in seen["internal_states"]] == ["w1", "w2"]
            assert seen["max_total_num_tokens"] == sum(s["max_total_num_tokens"] for s in seen["internal_states"])

    run(check())
