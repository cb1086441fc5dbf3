"""The Serve deployment over real HTTP and the default proxy, with workers inside the replica."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from configs import EngineConfig, RemoraConfig, WorkerConfig, to_tree

pytestmark = pytest.mark.ray

DEPLOYED_AT = 1_700_000_000


def local_pool(folder: str) -> Any:
    """A pool port over workers in the replica's own process."""
    from actors.runner.toy import ToyRunner
    from actors.worker.shell import WorkerShell
    from cluster.store.sqlite import SqliteStore
    from tests.ingress.local import LocalPool, LocalWorker

    store = SqliteStore(f"{folder}/sessions.sqlite")
    config = RemoraConfig(engine=EngineConfig(check_invariants=True))
    workers = [LocalWorker(WorkerShell(f"w{n}", config, ToyRunner(step_s=0.01), store)) for n in (1, 2)]
    for worker in workers:
        worker.shell.start()
    return LocalPool(store, workers)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import ray
    from ray import serve

    from actors.ingress.deployment import IngressDeployment

    folder: Path = tmp_path_factory.mktemp("serve")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    mine = not ray.is_initialized()
    if mine:
        root = str(Path(__file__).parents[2])
        ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": root}}
        )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    tree = to_tree(RemoraConfig(workers=WorkerConfig(runner="toy")))
    serve.run(IngressDeployment.bind(local_pool, str(folder), tree, DEPLOYED_AT), name="ingress-test", route_prefix="/")
    yield f"http://127.0.0.1:{port}"
    serve.delete("ingress-test")
    if mine:
        serve.shutdown()
        ray.shutdown()


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def owned(client: httpx.Client) -> tuple[int, int]:
    """(pages owned by requests, requests running)."""
    stats = client.get("/v1/stats").json()
    return sum(worker["pages"]["request_owned"] for worker in stats["workers"]), stats["ingress"]["open_requests"]


def wait_for(client: httpx.Client, wanted: Any, limit_s: float = 5.0) -> None:
    end = time.monotonic() + limit_s
    while not wanted(owned(client)):
        assert time.monotonic() < end, owned(client)
        time.sleep(0.01)


def test_a_model_is_as_old_as_its_deployment(url: str) -> None:
    """Two replicas start at different times, and must not differ in what they say of it."""
    assert httpx.get(f"{url}/v1/models/toy").json()["created"] == DEPLOYED_AT


def test_a_session_over_serve(url: str) -> None:
    with httpx.Client(base_url=url, timeout=100) as client:
        assert client.get("/health").status_code == 200
        use = {"id": "a b/ü", "create": True}
        first = client.post("/v1/chat/completions", json=body("one", max_tokens=5, session=use))
        second = client.post("/v1/chat/completions", json=body("two", max_tokens=5, session={"id": "a b/ü"}))
        assert first.status_code == second.status_code == 200
        assert second.json()["usage"]["prompt_tokens"] > first.json()["usage"]["prompt_tokens"] + 5
        assert client.get("/v1/sessions/a%20b%2F%C3%BC").json()["turns"] == 2
        refused = client.post("/v1/chat/completions", content=b"{", headers={"x-request-id": "mine"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_json")
        assert refused.json()["error"]["request_id"] == refused.headers["x-request-id"] == "mine"
        own = client.post("/v1/chat/completions", content=b"{")
        assert own.headers["x-request-id"] == own.json()["error"]["request_id"]


def test_a_stream_over_serve_ends_with_its_marker(url: str) -> None:
    with (
        httpx.Client(base_url=url, timeout=100) as client,
        client.stream("POST", "/v1/chat/completions", json=body("hi", max_tokens=6, stream=True)) as response,
    ):
        lines = [line for line in response.iter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line[6:]) for line in lines[:-1]]
        assert len("".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)) == 6


def test_closed_sockets_are_aborts_over_serve(url: str) -> None:
    """A1, A6: streamed and unary; the pages come back."""
    with httpx.Client(base_url=url, timeout=100) as client:
        with client.stream("POST", "/v1/chat/completions", json=body("x", max_tokens=8000, stream=True)) as response:
            lines = response.iter_lines()  # Held: an iterator that is thrown away closes the response.
            next(lines)
            wait_for(client, lambda seen: seen[0] > 0)
        wait_for(client, lambda seen: seen == (0, 0))
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/chat/completions", json=body("x", max_tokens=8000), timeout=0.5)
        wait_for(client, lambda seen: seen == (0, 0))
