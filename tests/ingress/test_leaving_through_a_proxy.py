"""A client that leaves behind a reverse proxy, with every layer on: keys, limits, both logs, metrics, a trace."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from configs import EngineConfig, TenantLimits
from tests.ingress.keyed import ACME, OPS, keys
from tests.ingress.relay import relaying
from tests.ingress.web import Web, serving

STEP_S = 0.002
TOO_MANY = 6000
"""Tokens that take a client longer than anybody waits."""
LIMITS = TenantLimits(
    requests_per_minute=10_000, tokens_per_minute=10**7, concurrent_requests=3, sessions=5, weight=2.0
)


@dataclass(frozen=True, slots=True)
class Layers:
    """`ports`: where the server is met, directly and through the proxy."""

    web: Web
    ports: dict[str, int]
    access: Path
    requests: Path

    def send(self, way: str, trace_id: str, **fields: Any) -> socket.socket:
        body = {"messages": [{"role": "user", "content": "go"}], "max_tokens": TOO_MANY, "ignore_eos": True, **fields}
        content = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ACME}\r\n"
            f"traceparent: 00-{trace_id}-00f067aa0ba902b7-01\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        made = socket.create_connection(("127.0.0.1", self.ports[way]), timeout=60)
        made.sendall(head.encode() + content)
        return made

    def state(self) -> dict[str, Any]:
        return self.web.at.shell().stats()

    def quiet(self) -> bool:
        at = self.web.at
        return at.pages("w1")["request_owned"] == 0 and at.ingress.metrics.open_requests == 0

    def line(self, path: Path, trace_id: str) -> dict[str, Any]:
        """The one that tells of the trace, once it is there."""
        self.web.wait_until(lambda: trace_id in path.read_text(encoding="ascii"))
        rows = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
        (row,) = (row for row in rows if row.get("trace_id") == trace_id)
        return dict(row)


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layers]:
    folder = tmp_path_factory.mktemp("layers")
    access, requests = folder / "access.jsonl", folder / "requests.jsonl"
    options: dict[str, Any] = {"auth": keys(), "tenants": {"acme": LIMITS}, "access_log": str(access)}
    engine = EngineConfig(check_invariants=True, max_running=1, max_step_tokens=64)
    with (
        serving(folder, step_s=STEP_S, engine=engine, request_log=str(requests), **options) as web,
        relaying(web.port) as port,
    ):
        yield Layers(web, {"directly": web.port, "through a proxy": port}, access, requests)


@pytest.mark.parametrize("way", ["directly", "through a proxy"])
@pytest.mark.parametrize("stage", ["decode", "prefill", "waiting"])
@pytest.mark.parametrize("stream", [True, False])
def test_leaving_is_noticed_as_fast_as_without(layers: Layers, way: str, stage: str, stream: bool) -> None:
    """A1, A6, E6, field case N04: whole and streamed, while it generates, before its first byte, and in the queue: not
    at the next write, nor at the end; and both logs tell of it under the client's own trace."""
    trace, blocker = secrets.token_hex(16), None
    if stage == "waiting":
        blocker = layers.send("directly", secrets.token_hex(16), stream=True)
        layers.web.wait_until(lambda: layers.state()["running"] == 1)
    messages = [{"role": "user", "content": "x" * 7000}] if stage == "prefill" else [{"role": "user", "content": "go"}]
    max_tokens = 500 if stage == "prefill" else TOO_MANY
    client = layers.send(way, trace, stream=stream, messages=messages, max_tokens=max_tokens)
    awaited = "waiting" if stage == "waiting" else "running"
    layers.web.wait_until(lambda: layers.state()[awaited] == 1)
    if stage == "decode" and stream:
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
    client.close()
    layers.web.wait_until(lambda: layers.web.at.ingress.metrics.open_requests == (1 if blocker else 0))
    if blocker:
        blocker.close()
    layers.web.wait_until(layers.quiet)
    told = layers.line(layers.requests, trace)
    assert (told["outcome"], told["reason"], told["tenant"]) == ("abort", "client_disconnect", "acme")
    assert told["completion_tokens"] < max_tokens / 2
    assert stage != "waiting" or (told["stage"], told["completion_tokens"]) == ("waiting", 0)
    seen = layers.line(layers.access, trace)
    assert (seen["tenant"], seen["complete"], seen["parent_id"]) == ("acme", False, "00f067aa0ba902b7")
    assert told["parent_id"] == seen["span_id"]


def test_the_metrics_say_so_too(layers: Layers) -> None:
    """E6: each of those that left is counted, by its reason."""
    trace = secrets.token_hex(16)
    client = layers.send("through a proxy", trace)
    layers.web.wait_until(lambda: layers.state()["running"] == 1)
    client.close()
    layers.web.wait_until(layers.quiet)
    exposed = httpx.get(f"{layers.web.url}/metrics", headers={"authorization": f"Bearer {OPS}"}, timeout=60)
    counted = [line for line in exposed.text.splitlines() if 'reason="client_disconnect"' in line]
    assert sum(float(line.rsplit(" ", 1)[1]) for line in counted if "_total" in line) >= 1
