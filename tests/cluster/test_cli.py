"""The command line: what it takes, and the one line it says when that cannot be."""

from __future__ import annotations

import importlib.metadata
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.cli import main, parser, settings
from cluster.cli_serve import check_port, ready_line
from cluster.cli_status import lines
from cluster.ray_errors import cause_of
from cluster.usage import UsageError
from configs import RemoraConfig, load


def asked(environ: dict[str, str], *argv: str) -> RemoraConfig:
    return settings(parser(environ).parse_args(["serve", *argv]))


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("workers: {count: 3, threads: 2}\ningress: {port: 1111, host: 0.0.0.0}\n")
    environ = {"CONFIG": str(path), "PORT": "2222", "WORKERS": "4", "MODEL": "org/name"}
    config = asked(environ, "--workers", "5", "--set", "engine.kv_tokens=4096", "--set", "workers.runner=toy")
    assert (config.ingress.port, config.ingress.host) == (2222, "0.0.0.0")
    assert (config.workers.count, config.workers.threads, config.workers.runner) == (5, 2, "toy")
    assert (config.model.id, config.engine.kv_tokens) == ("org/name", 4096)


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert asked({"CONFIG": "", "PORT": "", "WORKERS": "", "MODEL": "", "HOST": ""}) == load()


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--port", "http"], "port: 'http' is not a whole number"),
        (["--workers", "2.5"], "workers: '2.5' is not a whole number"),
        (["--workers", "0"], "workers.count: 0 is too small"),
        (["--set", "kv_tokens=5"], "--set kv_tokens=5: expected SECTION.NAME=VALUE"),
        (["--set", "engine.kv_tokens=["], "not a YAML value"),
        (["--set", "engine.kv=1"], "engine.kv: unknown setting"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONFIG", "PORT", "HOST", "WORKERS", "MODEL"):
        monkeypatch.delenv(name, raising=False)
    assert main(["serve", *argv]) == 1
    printed = capsys.readouterr().err
    assert complaint in printed
    assert printed.count("\n") == 1


def test_a_port_that_is_taken_is_said_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", "--port", str(port), "--host", "127.0.0.1", "--set", "workers.runner=toy"]) == 1
        assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err
    check_port("127.0.0.1", port)


def test_an_address_that_is_not_ours_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"192\.0\.2\.1"):
        check_port("192.0.2.1", 8000)


def test_a_model_that_is_not_there_is_said_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    missing = tmp_path / "missing.gguf"
    assert main(["serve", "--port", str(port), "--model", str(missing)]) == 1
    assert "missing.gguf" in capsys.readouterr().err


def test_the_ready_line_names_model_workers_tokens_and_url() -> None:
    config = load(None, {"workers.runner": "toy", "ingress.host": "0.0.0.0", "ingress.port": 8123})
    line = ready_line(config, [{"kv_tokens": 65536}, {"kv_tokens": 65536}])
    assert line == "ready: toy on 2 workers, 131,072 KV tokens, http://127.0.0.1:8123/v1 (Ctrl-C stops it)"
    six = replace(config, ingress=replace(config.ingress, host="::1"))
    assert "http://[::1]:8123/v1" in ready_line(six, [{"kv_tokens": 1}])


@pytest.mark.parametrize("command", ["status", "chat"])
def test_no_server_is_one_line_and_exit_code_1(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert main([command, "--url", url]) == 1
    printed = capsys.readouterr().err
    assert url in printed
    assert printed.count("\n") == 1


def test_status_shows_workers_that_have_not_answered_yet_too() -> None:
    pool = {"desired_workers": 2, "sessions": 7, "deaths": [{"worker": "worker-3", "cause": "out of memory"}]}
    ready = {
        "id": "worker-1",
        "state": "ready",
        "node": "n",
        "running": 1,
        "waiting": 2,
        "owned_sessions": 7,
        "pages": {"free": 1000, "total": 4096},
    }
    shown = lines({"pool": pool, "workers": [ready, {"id": "worker-2", "state": "starting"}]})
    assert "1,000/4,096" in shown[1]
    assert "starting" in shown[2]
    assert shown[-1] == "died: worker-3: out of memory"


CREATION = """The actor died because of an error raised in its creation task, ray::WorkerActor.__init__() (pid=1)
  File "actor.py", line 36, in __init__
    runner, bos_id = build_runner(self._config)
actors.model.errors.ModelUnusable: /m: its architecture is not supported"""
EXITED = """The actor died unexpectedly before finishing this task.
\tclass_name: WorkerActor
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file."""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (CREATION, "/m: its architecture is not supported"),
        (CREATION.replace("actors.model.errors.ModelUnusable", "torch.OutOfMemoryError"), "OutOfMemoryError: /m: its"),
        (EXITED, "its process vanished: killed"),
        (
            EXITED.replace("unexpectedly exits with a connection error", "exits by intent"),
            "its process ended: Worker ex",
        ),
        ("Task was killed due to the node running low on memory.\nMore", "out of memory"),
        ("It failed.\nThe actor died because its node has died. Node Id: 7d68", "its node has died. Node Id: 7d68"),
        ("Plain text", "Plain text"),
        ("", "RuntimeError"),
    ],
)
def test_what_ray_says_becomes_one_line(text: str, cause: str) -> None:
    assert cause_of(RuntimeError(text)).startswith(cause)
    assert "\n" not in cause_of(RuntimeError(text))


def test_it_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])
    assert capsys.readouterr().out == f"remora {importlib.metadata.version('remora')}\n"
