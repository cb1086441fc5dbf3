"""Keys and limits of tenants: how they are written, and what is said of those that are not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from configs import ConfigError, RemoraConfig, TenantLimits, from_tree, load, to_tree
from configs.keys import KeyEntry, configured_keys, fingerprint, keys_in, new_key, read_keys_file

HASH = "ab" * 32


def written(folder: Path, text: str) -> Path:
    path = folder / "keys.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_keys_file_as_the_documentation_shows_it(tmp_path: Path) -> None:
    text = f"""
    keys:
      - {{name: web, tenant: acme, sha256: "{HASH}"}}
      - {{name: ops, tenant: operations, sha256: "{"cd" * 32}", admin: true}}
    tenants:
      acme: {{requests_per_minute: 600, tokens_per_minute: 200000, concurrent_requests: 8, sessions: 500}}
      "*": {{requests_per_minute: 60}}
    """
    file = read_keys_file(written(tmp_path, text))
    assert file.keys[0] == KeyEntry("web", "acme", HASH)
    assert file.keys[1].admin
    assert file.tenants["acme"] == TenantLimits(600, 200_000, 8, 500)
    assert file.tenants["*"] == TenantLimits(requests_per_minute=60)


def test_json_will_do(tmp_path: Path) -> None:
    text = f'{{"keys": [{{"name": "web", "tenant": "acme", "sha256": "{HASH}"}}]}}'
    assert read_keys_file(written(tmp_path, text)).keys == (KeyEntry("web", "acme", HASH),)


def test_keys_are_random_and_their_fingerprint_is_sha256() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("rmk-") and len(key) == 47 and key.isascii() for key in keys)
    assert fingerprint(b"x") == hashlib.sha256(b"x").hexdigest()


def test_settings_may_name_keys_and_tenants(tmp_path: Path) -> None:
    path = written(tmp_path, f'auth: {{keys: ["acme:{HASH}:admin"]}}\ntenants: {{acme: {{sessions: 3}}}}\n')
    config = load(path, {"tenants.globex": {"concurrent_requests": 2}, "tenants.acme.requests_per_minute": 5})
    assert configured_keys(config.auth) == [KeyEntry("keys-0", "acme", HASH, admin=True)]
    assert config.tenants["acme"] == TenantLimits(sessions=3, requests_per_minute=5)
    assert config.tenants["globex"] == TenantLimits(concurrent_requests=2)
    assert from_tree(RemoraConfig, to_tree(config)) == config


def test_the_environment_may_name_keys() -> None:
    assert keys_in({}) == ()
    variable = f" acme:{HASH},globex:{HASH}:admin\n  ops:{HASH} "
    assert keys_in({"REMORA_API_KEYS": variable}) == (f"acme:{HASH}", f"globex:{HASH}:admin", f"ops:{HASH}")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("auth: {keys: acme}", r"^auth\.keys: expected a list of strings"),
        ('auth: {keys: ["acme"]}', r"^auth\.keys\[0\]: expected TENANT:SHA256"),
        (f'auth: {{keys: ["acme:{HASH}:root"]}}', r"^auth\.keys\[0\]: expected TENANT:SHA256"),
        (f'auth: {{keys: ["acme:{HASH}", "a b:{HASH}"]}}', r"^auth\.keys\[1\]: a name is 1 to 64"),
        (f'auth: {{keys: [":{HASH}"]}}', r"^auth\.keys\[0\]: a name is 1 to 64"),
        (f'auth: {{keys: ["acme:{HASH.upper()}"]}}', r"^auth\.keys\[0\]: .*64 lower-case hex digits"),
        ("auth: {stats_access: all}", r"^auth\.stats_access: 'all'; it must be admin, key or open"),
        ("auth: {reload_s: -1}", r"^auth\.reload_s: -1\.0; it must be 0 or more"),
        ("auth: {key_file: x}", r"^auth\.key_file: unknown setting"),
        ("tenants: [a]", r"^tenants: expected settings by name, got list"),
        ("tenants: {acme: 5}", r"^tenants\.acme: expected settings by name, got int"),
        ("tenants: {acme: {sessions: many}}", r"^tenants\.acme\.sessions: expected int, got 'many'"),
        ("tenants: {acme: {sessions: -1}}", r"^tenants\.acme\.sessions: -1; it must be 0 or more"),
        ("tenants: {'a/b': {sessions: 1}}", r"^tenants: a name is 1 to 64"),
    ],
)
def test_what_cannot_be_used_is_named_by_its_path(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(written(tmp_path, text))


def test_a_key_in_place_of_its_hash_is_not_repeated() -> None:
    key = new_key()
    for refused in (
        lambda: load(None, {"auth.keys": [f"acme:{key}"]}),
        lambda: load(None, {"auth.keys": [key]}),
        lambda: keys_in({"REMORA_API_KEYS": f"acme:{key}"}),
        lambda: keys_in({"REMORA_API_KEYS": key}),
    ):
        with pytest.raises(ConfigError) as caught:
            refused()
        assert key not in str(caught.value)


def test_a_wrong_variable_is_called_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^REMORA_API_KEYS, entry 2: "):
        keys_in({"REMORA_API_KEYS": f"acme:{HASH} acme"})
