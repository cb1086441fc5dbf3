"""`remora rollout` against a server that plays its part."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from cluster import cli_rollout
from cluster.cli import main
from cluster.cli_status import lines

BEGUN = {"state": "running", "stale_workers": 2, "kept_workers": 0, "restart": 7, "why": ""}


@contextmanager
def server(*answers: tuple[int, dict[str, Any]]) -> Iterator[str]:
    """Gives these answers one after the other, the last one for ever."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            status, tree = left.pop(0) if len(left) > 1 else left[0]
            body = json.dumps(tree).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def stats(**changed: Any) -> tuple[int, dict[str, Any]]:
    return 200, {"pool": {"rollout": {**BEGUN, **changed}}}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_rollout, "LOOK_S", 0.01)


def test_it_says_how_it_goes_until_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    """T5: a pool that is new, or away for a moment, is waited for."""
    away = (503, {"error": {}})
    young = stats(state="done", stale_workers=0, restart=0)
    after = stats(stale_workers=1)
    done = stats(state="done", stale_workers=0, kept_workers=1)
    with server((202, BEGUN), stats(), away, young, after, after, done) as url:
        assert main(["rollout", "--url", url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "rollout begun: 2 workers to replace",
        "2 workers to replace",
        "done: every worker is new",
        "1 workers to replace",
        "done: every worker is new; 1 kept for pinned sessions",
    ]


def test_one_that_stopped_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with server((202, BEGUN), stats(state="stopped", why="out of memory")) as url:
        assert main(["rollout", "--url", url]) == 1
    assert "stopped: out of memory; 2 workers of before serve on" in capsys.readouterr().out


def test_it_need_not_be_watched() -> None:
    with server((202, BEGUN), (500, {})) as url:
        assert main(["rollout", "--url", url, "--no-wait"]) == 0


@pytest.mark.parametrize(
    ("status", "complaint"), [(401, "asks for a key"), (403, "takes a key with `admin`"), (500, "no answer from")]
)
def test_a_refusal_is_one_line_and_exit_code_1(status: int, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with server((status, {"error": {}})) as url:
        assert main(["rollout", "--url", url]) == 1
    printed = capsys.readouterr().err
    assert complaint in printed
    assert "\n" not in printed.strip()


def test_status_shows_a_rollout_that_is_not_done() -> None:
    pool = {"desired_workers": 2, "sessions": 7, "deaths": [], "rollout": BEGUN}
    assert lines({"pool": pool, "workers": []})[-1] == "rollout: 2 workers to replace"
