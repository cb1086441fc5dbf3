"""The keys file: taken up while the server runs, and never the worse for a slip."""

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
from tests.ingress.asgi import run
from tests.ingress.harness import edge
from tests.ingress.keyed import ACME, ACME_TOO, GLOBEX, hashed


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
        return "remora_keys_file_usable 1.0" in self.metrics.exposition().decode()


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
