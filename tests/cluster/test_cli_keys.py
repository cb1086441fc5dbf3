"""`remora keys`, and what the other commands do about keys."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import yaml

from cluster.app import build_app, with_keys_of
from cluster.cli import main, parser
from cluster.cli_serve import check_access, with_absolute_files
from cluster.cli_status import show_status
from cluster.client_key import key_header
from cluster.usage import UsageError
from configs import ConfigError, load
from configs.keys import fingerprint, keys_in, read_keys_file


def test_a_new_key_is_shown_with_the_line_that_lets_it_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "--tenant", "acme", "--name", "web", "--admin"]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    key = next(line for line in shown if line.startswith("rmk-"))
    line = next(line for line in shown if line.startswith("- {"))
    path = tmp_path / "keys.yaml"
    path.write_text(f"keys:\n  {line}\n")
    (entry,) = read_keys_file(path).keys
    assert (entry.name, entry.tenant, entry.admin) == ("web", "acme", True)
    assert entry.sha256 == fingerprint(key.encode())
    variable = shown[-1]
    assert keys_in({"REMORA_API_KEYS": variable}) == (f"acme:{entry.sha256}:admin",)
    assert sum(key in line for line in shown) == 1


def test_a_number_for_a_name_stays_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "--tenant", "007", "--name", "1e5"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("- {"))
    (entry,) = yaml.safe_load(line)
    assert (entry["name"], entry["tenant"], "admin" in entry) == ("1e5", "007", False)


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "keys.yaml"
    broken.write_text("keys: 5")
    for argv, complaint in (
        (["keys", "new", "--tenant", "a b"], "--tenant: a name is 1 to 64"),
        (["keys", "check", str(broken)], "keys: expected a list"),
        (["keys", "check", str(tmp_path / "none")], "No such file"),
    ):
        assert main(argv) == 1
        printed = capsys.readouterr().err
        assert complaint in printed
        assert printed.count("\n") == 1


def test_a_file_can_be_checked_before_the_server_sees_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.yaml"
    entries = [{"name": f"k{n}", "tenant": "acme", "sha256": f"{n}" * 64} for n in range(2)]
    path.write_text(yaml.safe_dump({"keys": entries, "tenants": {"globex": {"sessions": 3}}}))
    assert main(["keys", "check", str(path)]) == 0
    acme, globex = capsys.readouterr().out.splitlines()
    assert acme.split()[:3] == ["acme", "2", "keys"]
    assert "sessions=3" in globex


def test_serve_looks_at_the_keys_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a missing file nor a wrong variable may end in a server that is open, or one that starts for minutes."""
    with pytest.raises(FileNotFoundError):
        check_access(load(None, {"auth.keys_file": str(tmp_path / "none")}))
    with pytest.raises(OSError, match="none"):
        check_access(load(None, {"ingress.access_log": str(tmp_path / "none" / "log")}))
    monkeypatch.setenv("REMORA_API_KEYS", "acme")
    with pytest.raises(ConfigError, match="REMORA_API_KEYS"):
        check_access(load())
    with pytest.raises(ConfigError, match="REMORA_API_KEYS"):
        build_app(load())


def test_the_environments_keys_go_with_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """As hashes: neither the settings nor anything made of them holds a key."""
    one, two = fingerprint(b"one"), fingerprint(b"two")
    config = with_keys_of({"REMORA_API_KEYS": f"globex:{two}"}, load(None, {"auth.keys": [f"acme:{one}"]}))
    assert config.auth.keys == (f"acme:{one}", f"globex:{two}")
    assert with_keys_of({}, load()) == load()


def test_an_open_server_on_the_network_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REMORA_API_KEYS", raising=False)
    check_access(load())
    assert capsys.readouterr().out == ""
    check_access(load(None, {"ingress.host": "0.0.0.0"}))
    assert "whoever reaches 0.0.0.0 may use it" in capsys.readouterr().out
    check_access(load(None, {"ingress.host": "0.0.0.0", "auth.keys": [f"acme:{fingerprint(b'one')}"]}))
    assert capsys.readouterr().out == ""


def test_files_are_named_for_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = with_absolute_files(
        load(None, {"auth.keys_file": "k.yaml", "ingress.access_log": "a.log", "workers.request_log": "r"})
    )
    assert (config.auth.keys_file, config.ingress.access_log) == (str(tmp_path / "k.yaml"), str(tmp_path / "a.log"))
    assert config.workers.request_log == str(tmp_path / "r")
    assert with_absolute_files(load()) == load()


def test_clients_take_their_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the command line, which everybody on the machine can read."""
    assert key_header({}) == {}
    assert key_header({"REMORA_API_KEY": "rmk-x"}) == {"authorization": "Bearer rmk-x"}
    seen = []

    def get(url: str, headers: dict[str, str], timeout: float) -> httpx.Response:
        seen.append(headers)
        return httpx.Response(200, json={"tenant": {"name": "acme"}}, request=httpx.Request("GET", url))

    monkeypatch.setattr(httpx, "get", get)
    monkeypatch.setenv("REMORA_API_KEY", "rmk-x")
    with pytest.raises(UsageError, match="no `admin`"):
        show_status("http://host", key_header({"REMORA_API_KEY": "rmk-x"}))
    assert main(["status", "--url", "http://host"]) == 1
    assert seen == [{"authorization": "Bearer rmk-x"}] * 2
    assert "key" not in vars(parser({}).parse_args(["chat"]))
    monkeypatch.setattr(httpx, "get", lambda url, headers, timeout: httpx.Response(401))
    with pytest.raises(UsageError, match="asks for a key: put one into REMORA_API_KEY"):
        show_status("http://host", {})
