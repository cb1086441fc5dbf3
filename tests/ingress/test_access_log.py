"""The request log: what is in it, and what can never be."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from configs import AuthConfig, TenantLimits
from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.keyed import ACME, Keyed, hashed, keys
from tests.ingress.local import cluster
from tests.ingress.scripted import nothing, says

HOSTILE = [
    "a\tb",
    "%s%n%(msg)s{x}",
    "日本語-🙂",
    "../../etc/passwd",
    "\u202egnp.exe",
    '", "status": 0, "x": "',
    "'; DROP",
]


def lines(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    assert raw.isascii()
    return [json.loads(line) for line in raw.decode().splitlines()]


def test_one_line_per_request_says_who_asked_what_and_what_came_of_it(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"

    async def check() -> None:
        async with edge(says("hello"), auth=keys(), access_log=str(path)) as at:
            client = Keyed(at.ingress, ACME)
            whole = await client.chat(headers={"x-request-id": "req-7"}).whole()
            await client.chat(stream=True).whole()
            await client.get("/v1/nowhere")
            await at.client.get("/v1/sessions?after=secret-session")
            await at.client.get("/health")
            logged = lines(path)
            assert [(row["method"], row["path"], row["status"]) for row in logged] == [
                ("POST", "/v1/chat/completions", 200),
                ("POST", "/v1/chat/completions", 200),
                ("GET", "/v1/nowhere", 404),
                ("GET", "/v1/sessions", 401),
                ("GET", "/health", 200),
            ]
            assert [row["tenant"] for row in logged] == ["acme", "acme", "acme", "", ""]
            assert [row["key"] for row in logged] == ["keys-0", "keys-0", "keys-0", "", ""]
            assert (logged[0]["request_id"], logged[0]["bytes"]) == ("req-7", len(whole.body))
            assert all(row["complete"] and row["ms"] >= 0 for row in logged)

    run(check())


def test_neither_prompts_nor_answers_nor_keys_are_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nor in any other log, as loud as it may be."""
    path = tmp_path / "access.jsonl"
    caplog.set_level(logging.DEBUG)

    async def check() -> None:
        async with cluster(tmp_path, auth=keys(), access_log=str(path)) as at:
            client = Keyed(at.ingress, ACME)
            call = await client.chat("the-prompt-itself", session={"id": "s", "create": True}, max_tokens=8).whole()
            assert call.status == 200
            answer = call.json()["choices"][0]["message"]["content"]
            await at.client.chat("the-prompt-itself", headers={"x-api-key": "rmk-wrong-key"}).whole()
            await client.get("/v1/sessions?after=the-query-itself")
            for text in (path.read_text(), caplog.text):
                for secret in ("the-prompt-itself", "the-query-itself", ACME, "rmk-wrong-key", answer):
                    assert secret not in text

    run(check())
    assert len(lines(path)) == 3


def test_hostile_ids_stay_on_one_line_and_mean_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S13: whatever an id contains: escaped in every log, in no metric, in no name of a file."""
    path = tmp_path / "access.jsonl"
    caplog.set_level(logging.INFO)

    async def check() -> None:
        async with cluster(tmp_path, access_log=str(path)) as at:
            for name in HOSTILE:
                session = f"/v1/sessions/{quote(name, safe='')}"
                await at.client.chat("x", rid=f"rid {name}", session={"id": name, "create": True}, max_tokens=2).whole()
                await at.client.get(session)
                await at.client.post("/v1/aborts", {"rids": [name]})
                await at.client.start("DELETE", session).whole()
            await at.client.get(f"/v1/sessions/{quote('line1' + chr(10) + 'line2' + chr(13))}")
            metrics = (await at.client.get("/metrics")).body.decode()
            for name in HOSTILE:
                assert name not in metrics
            assert len(metrics) < 2**20

    run(check())
    logged = lines(path)
    assert len(logged) == 4 * len(HOSTILE) + 2
    assert {row["path"] for row in logged} >= {f"/v1/sessions/{name}" for name in HOSTILE}
    assert all(isinstance(row["status"], int) for row in logged)
    assert {found.name.split(".")[0] for found in tmp_path.iterdir()} == {"access", "sessions"}
    ours = [record for record in caplog.records if record.name.startswith(("actors", "cluster", "remora"))]
    assert ours
    for record in ours:
        assert record.getMessage().isascii()
        assert "\n" not in record.getMessage()


def test_names_are_not_labels() -> None:
    """E6, field case N71: a hundred tenants, each with its sessions and rids, add no series to the metrics."""

    async def check() -> None:
        secrets = [f"rmk-{number}" for number in range(100)]
        auth = AuthConfig(keys=tuple(hashed(f"tenant-{n}", key) for n, key in enumerate(secrets)))
        limits = {"*": TenantLimits(requests_per_minute=2)}
        async with edge(says("x"), auth=auth, tenants=limits) as at:
            sizes = []
            for number, key in enumerate(secrets):
                client, name = Keyed(at.ingress, key), f"session-{number}"
                await client.chat(rid=f"rid-{number}", session={"id": name, "create": True}).whole()
                for _ in range(2):
                    await client.chat(session={"id": name}, headers={"x-api-key": f"wrong-{number}"}).whole()
                sizes.append(len(at.ingress.metrics.exposition().splitlines()))
            assert sizes[0] == sizes[-1]
            text = at.ingress.metrics.exposition().decode()
            assert not any(word in text for word in ("session-", "rid-", "tenant-", "wrong-", "rmk-"))
            assert 'remora_requests_limited_total{limit="requests"} 100.0' in text

    run(check())


def test_a_client_that_left_is_told_from_one_that_got_all(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"

    async def check() -> None:
        async with edge(nothing, access_log=str(path)) as at:
            call = at.client.chat(stream=True)
            await at.worker.submitted.wait()
            call.disconnect()
            await call.whole()

    run(check())
    assert [(row["status"], row["complete"]) for row in lines(path)] == [(0, False)]


def test_the_file_may_be_rotated_away(tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"

    async def check() -> None:
        async with edge(access_log=str(path)) as at:
            await at.client.get("/health")
            path.rename(tmp_path / "access.jsonl.1")
            await at.client.get("/health")
            assert len(lines(path)) == len(lines(tmp_path / "access.jsonl.1")) == 1

    run(check())


def test_it_is_off_unless_asked_for(tmp_path: Path) -> None:
    async def check() -> None:
        async with edge() as at:
            await at.client.get("/health")

    run(check())
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    async def check() -> None:
        with pytest.raises(FileNotFoundError):
            async with edge(access_log=str(tmp_path / "no" / "folder")):
                pass

    run(check())
