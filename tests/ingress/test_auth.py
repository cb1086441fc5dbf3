"""Keys: who gets in, as whom, and what everybody else is told."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from actors.ingress import keyring
from actors.ingress.keyring import KeyRing
from actors.ingress.metrics import Metrics
from configs import AuthConfig, ConfigError, TenantLimits
from configs.keys import fingerprint
from tests.ingress.asgi import Call, run
from tests.ingress.harness import edge
from tests.ingress.keyed import ACME, ACME_TOO, GLOBEX, OPS, Keyed, hashed, keys
from tests.ingress.scripted import nothing, says

BAD = [
    ({}, "missing"),
    ({"authorization": "Bearer rmk-nobody"}, "unknown"),
    ({"authorization": "Bearer "}, "missing"),
    ({"authorization": "Bearer"}, "missing"),
    ({"authorization": ACME}, "missing"),
    ({"authorization": f"Basic {ACME}"}, "missing"),
    ({"authorization": f"Bearer {ACME[:-1]}"}, "unknown"),
    ({"authorization": f"Bearer {ACME}x"}, "unknown"),
    ({"authorization": f"Bearer {fingerprint(ACME.encode())}"}, "unknown"),
    ({"authorization": f"Bearer {'x' * 10_000}"}, "unknown"),
    ({"authorization": "Bearer ü"}, "unknown"),
    ({"x-api-key": "rmk-nobody"}, "unknown"),
    ({"x-api-key": ""}, "missing"),
    ({"authorization": "Bearer rmk-nobody", "x-api-key": ACME}, "unknown"),
]
GOOD = [
    {"authorization": f"Bearer {ACME}"},
    {"authorization": f"bearer  {ACME}"},
    {"x-api-key": ACME},
    {"x-api-key": ACME, "authorization": "Basic eDp5"},
]


def text_of(metrics: Metrics) -> str:
    return metrics.exposition().decode()


@pytest.mark.parametrize(("headers", "why"), BAD)
def test_without_a_good_key_nothing_is_answered(headers: dict[str, str], why: str) -> None:
    """S13, E4: 401 in the one error body, as the OpenAI clients know it; nothing reaches a worker or the pool."""

    async def check() -> None:
        async with edge(nothing, auth=keys()) as at:
            calls = [at.client.chat(headers=headers), at.client.start("GET", "/v1/sessions", headers=headers)]
            for call in calls:
                await call.whole()
                error = call.json()["error"]
                assert call.status == 401
                assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
                assert (error["reason"], error["retryable"]) == ("invalid", False)
                assert error["request_id"] == call.headers["x-request-id"]
                assert call.headers["www-authenticate"] == "Bearer"
                assert call.headers["x-should-retry"] == "false"
                assert "rmk-" not in call.body.decode()
            assert at.worker.submits == []
            assert f'remora_keys_refused_total{{why="{why}"}} 2.0' in text_of(at.ingress.metrics)
            assert "rmk-" not in text_of(at.ingress.metrics)

    run(check())


@pytest.mark.parametrize("headers", GOOD)
def test_a_good_key_names_the_tenant(headers: dict[str, str]) -> None:
    """S13: in `Authorization`, or in `x-api-key` as Anthropic's clients send it."""

    async def check() -> None:
        async with edge(says("hi"), auth=keys()) as at:
            call = await at.client.chat(headers=headers).whole()
            assert call.status == 200
            assert at.worker.submits[0].tenant == "acme"

    run(check())


def test_several_keys_are_one_tenant() -> None:
    """S13."""

    async def check() -> None:
        async with edge(says("hi"), auth=keys()) as at:
            for key in (ACME, ACME_TOO, GLOBEX):
                assert (await Keyed(at.ingress, key).chat().whole()).status == 200
            assert [submit.tenant for submit in at.worker.submits] == ["acme", "acme", "globex"]

    run(check())


def test_without_keys_everybody_is_the_default_tenant() -> None:
    """S13: an Authorization header means nothing then."""

    async def check() -> None:
        async with edge(says("hi")) as at:
            for headers in ({}, {"authorization": "Bearer none"}, {"x-api-key": "none"}):
                assert (await at.client.chat(headers=headers).whole()).status == 200
            assert {submit.tenant for submit in at.worker.submits} == {"default"}
            assert (await at.client.post("/v1/aborts", {"all": True})).status == 200
            assert (await at.client.get("/v1/stats")).json()["workers"]

    run(check())


def test_health_takes_no_key() -> None:
    async def check() -> None:
        async with edge(auth=keys()) as at:
            assert (await at.client.get("/health")).status == 200
            for path in ("/", "/v1/models", "/health/", "//health", "/nowhere", "/health/../v1/sessions", "/Health"):
                assert (await at.client.get(path)).status == 401

    run(check())


def test_a_body_without_a_key_is_not_even_read() -> None:
    """I1: strangers cannot make the server swallow megabytes."""

    async def check() -> None:
        async with edge(auth=keys()) as at:
            call = at.client.chat("x" * 20_000_000)
            await call.whole()
            assert call.status == 401
            assert call.unread

    run(check())


@pytest.mark.parametrize(
    ("access", "key", "sees"),
    [
        ("admin", None, 401),
        ("admin", ACME, "own"),
        ("admin", OPS, "all"),
        ("key", None, 401),
        ("key", ACME, "all"),
        ("open", None, "all"),
        ("open", "rmk-nobody", "all"),
    ],
)
def test_who_sees_the_stats_of_all(access: str, key: str | None, sees: object) -> None:
    """S13: a tenant sees its own use; what concerns all takes a key with `admin`, unless the settings say otherwise."""

    async def check() -> None:
        limits = {"acme": TenantLimits(concurrent_requests=3)}
        async with edge(auth=keys(stats_access=access), tenants=limits) as at:
            client = at.client if key is None else Keyed(at.ingress, key)
            stats, metrics = await client.get("/v1/stats"), await client.get("/metrics")
            if sees == "all":
                assert "workers" in stats.json()
                assert metrics.status == 200
            elif sees == "own":
                assert list(stats.json()) == ["tenant"]
                assert stats.json()["tenant"]["name"] == "acme"
                assert stats.json()["tenant"]["limits"]["concurrent_requests"] == 3
                assert (metrics.status, metrics.json()["error"]["code"]) == (403, "insufficient_permissions")
            else:
                assert (stats.status, metrics.status) == (401, 401)

    run(check())


def test_aborting_everything_takes_an_admin_key() -> None:
    """A1, S13."""

    async def check() -> None:
        async with edge(auth=keys()) as at:
            refused = await Keyed(at.ingress, ACME).post("/v1/aborts", {"all": True, "rid": "x"})
            assert (refused.status, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
            assert at.worker.aborts == []
            assert (await Keyed(at.ingress, OPS).post("/v1/aborts", {"all": True})).status == 200
            assert [(abort.tenant, abort.all) for abort in at.worker.aborts] == [("operations", True)]

    run(check())


def test_the_same_affinity_key_of_two_tenants_is_two_keys() -> None:
    """P5, S13: what one tenant calls its chats says nothing about where another's run."""

    async def check() -> None:
        async with edge(says("hi"), workers=8, auth=keys()) as at:
            homes: dict[str, set[str]] = {}
            for key in (ACME, ACME_TOO, GLOBEX):
                for number in range(12):
                    headers = {"x-session-id": f"chat-{number}"}
                    call = await Keyed(at.ingress, key).chat(headers=headers).whole()
                    homes.setdefault(key, set()).add(f"{number} on {call.headers['x-remora-worker']}")
            assert homes[ACME] == homes[ACME_TOO]
            assert homes[ACME] != homes[GLOBEX]

    run(check())


# -- the keys file -----------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Ring:
    """A ring over a file, and a hand on its clock."""

    def __init__(self, path: Path, **auth: Any) -> None:
        self.path = path
        self.clock = Clock()
        self.metrics = Metrics()
        config = AuthConfig(keys_file=str(path), **auth)
        self.ring = KeyRing(config, {"*": TenantLimits(sessions=7)}, self.metrics, self.clock)

    def write(self, **tree: Any) -> None:
        """As an editor does: a new file in place of the old."""
        write(self.path, **tree)

    def finds(self, key: str, *, after_s: float = 1.0) -> str | None:
        self.clock.now += after_s
        run(self.ring.refresh())
        caller = self.ring.find(key.encode())
        return caller.tenant if caller else None

    @property
    def usable(self) -> bool:
        return "remora_keys_file_usable 1.0" in text_of(self.metrics)


def write(path: Path, **tree: Any) -> Path:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(tree), encoding="utf-8")
    os.replace(fresh, path)
    return path


def entry(tenant: str, key: str, **fields: Any) -> dict[str, Any]:
    return {"name": "k", "tenant": tenant, "sha256": fingerprint(key.encode()), **fields}


def test_a_changed_file_counts_without_a_restart(tmp_path: Path) -> None:
    """Keys and limits: new ones open, old ones close, and the file is looked at once a second only."""
    path = write(tmp_path / "keys.yaml", keys=[entry("acme", ACME)])
    at = Ring(path)
    assert at.finds(ACME) == "acme"
    assert at.ring.limits("globex").sessions == 7
    at.write(keys=[entry("globex", GLOBEX)], tenants={"globex": {"sessions": 3}})
    assert at.finds(GLOBEX, after_s=0.5) is None
    assert at.finds(GLOBEX, after_s=0.5) == "globex"
    assert at.finds(ACME) is None
    assert at.ring.limits("globex").sessions == 3
    assert at.ring.limits("acme").sessions == 7
    at.write(keys=[])
    assert at.finds(GLOBEX) is None
    assert at.usable


BROKEN = [
    ("keys: [", "not valid YAML, line"),
    ("", "expected `keys` and `tenants`"),
    ("- a", "expected `keys` and `tenants`"),
    ("{}", "keys must be given"),
    ("keys: {a: b}", "expected a list"),
    ('keys: [{name: a, tenant: b, sha256: "rmk-thekeyitselfwhichisnotahash"}]', "64 lower-case hex digits"),
    ("keys: [{name: a, tenant: b, rmk-thekeyitselfwhichisnotahash: c}]", "unknown setting"),
    ("keys: [{name: a, tenant: b}]", "sha256 must be given"),
    ("keys: [{name: a, tenant: b, sha256: [rmk-thekeyitselfwhichisnotahash]}]", "expected str"),
    ("keys: [{name: rmk-thekeyitselfwhichisnotahash, sha256: x}]", "tenant must be given"),
    (f"keys: [{{name: a, tenant: 'b c', sha256: '{'0' * 64}'}}]", "a name is 1 to 64"),
    (f"keys: [{{name: a, tenant: b, sha256: '{'0' * 64}'}}, {{name: c, tenant: d, sha256: '{'0' * 64}'}}]", "twice"),
    (f"keys: [{{name: a, tenant: b, sha256: '{'0' * 64}', admin: 'yes'}}]", "expected bool"),
    ("keys: []\ntenants: {a: {sessions: -1}}", "must be 0 or more"),
    ("keys: []\ntenants: {a: {rpm: 1}}", "unknown setting"),
    ("\x00\x01", "not valid YAML"),
    ("[" * 5000, "not valid YAML"),
]


@pytest.mark.parametrize(("text", "complaint"), BROKEN, ids=[complaint for _, complaint in BROKEN])
def test_a_broken_file_leaves_the_old_keys_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, complaint: str
) -> None:
    """In the log, once, without repeating what may be a key; in the metrics for as long as it lasts."""
    path = write(tmp_path / "keys.yaml", keys=[entry("acme", ACME)])
    at = Ring(path)
    path.write_text(text, encoding="utf-8")
    with caplog.at_level(logging.ERROR, logger=keyring.__name__):
        assert at.finds(ACME) == "acme"
        assert at.finds(ACME) == "acme"
    assert [complaint in record.getMessage() for record in caplog.records] == [True]
    assert "thekeyitself" not in caplog.text
    assert not at.usable
    at.write(keys=[entry("acme", ACME_TOO)])
    assert at.finds(ACME_TOO) == "acme"
    assert at.finds(ACME) is None
    assert at.usable


def test_a_file_that_has_gone_leaves_the_old_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "keys.yaml", keys=[entry("acme", ACME)])
    at = Ring(path)
    path.unlink()
    assert at.finds(ACME) == "acme"
    assert at.finds(ACME) == "acme"
    assert caplog.text.count("cannot be read: No such file") == 1
    assert not at.usable
    at.write(keys=[entry("acme", ACME)])
    assert at.finds(ACME) == "acme"
    assert at.usable


def test_there_is_no_start_without_a_usable_file(tmp_path: Path) -> None:
    """Never open by mistake."""
    with pytest.raises(FileNotFoundError):
        Ring(tmp_path / "missing.yaml")
    broken = tmp_path / "keys.yaml"
    broken.write_text("keys: 5")
    with pytest.raises(ConfigError):
        Ring(broken)


def test_a_file_without_keys_lets_nobody_in(tmp_path: Path) -> None:
    path = write(tmp_path / "keys.yaml", keys=[])

    async def check() -> None:
        async with edge(auth=AuthConfig(keys_file=str(path))) as at:
            assert (await at.client.chat().whole()).status == 401

    run(check())


def test_keys_of_the_settings_and_of_the_file_both_count(tmp_path: Path) -> None:
    path = write(tmp_path / "keys.yaml", keys=[entry("globex", GLOBEX, admin=True)])
    at = Ring(path, keys=(hashed("acme", ACME),))
    assert (at.finds(ACME), at.finds(GLOBEX)) == ("acme", "globex")
    at.write(keys=[])
    assert (at.finds(ACME), at.finds(GLOBEX)) == ("acme", None)


def test_nothing_that_is_kept_is_a_key(tmp_path: Path) -> None:
    """Neither the ring nor its file holds one, so that neither a dump nor a backup gives one away."""
    path = write(tmp_path / "keys.yaml", keys=[entry("acme", ACME)])
    at = Ring(path)
    assert at.finds(ACME) == "acme"
    assert ACME not in path.read_text()
    assert ACME not in repr(vars(at.ring))


def test_the_call_type_knows_what_was_read() -> None:
    """The test of an unread body can fail."""

    async def check() -> None:
        async with edge(says("x")) as at:
            call: Call = at.client.chat()
            await call.whole()
            assert not call.unread

    run(check())
