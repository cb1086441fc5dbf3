"""Two workers against one: what differs between the servers, and what is made of the figures; a whole run is
`python -m tests.bench workers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.worker.build import compute_threads
from configs import load
from tests.bench import by_turns, workers
from tests.bench.figures import BenchError
from tests.bench.over_http import Asked
from tests.bench.peer_servers import Setting
from tests.bench.result_tables import markdown
from tests.bench.served import Launch
from tests.bench.servers_report import ServersReport
from tests.bench.shapes import Shapes
from tests.bench.workers import COUNTS, JUDGED, launch, parsed, run
from tests.bench.written import read

CORES = 2


def setting(folder: Path) -> Setting:
    return Setting(folder=folder / "model", gguf=folder / "model.gguf", model="m", threads=CORES, logs=folder)


def settings_of(started: Launch) -> dict[str, str]:
    """Values by path, as it is told on its command line."""
    words = list(started.command)
    return dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--set")


def test_the_servers_differ_in_their_number_of_workers_alone(tmp_path: Path) -> None:
    one, two = (settings_of(launch(name, setting(tmp_path))) for name in COUNTS)
    assert {path for path in one if one[path] != two[path]} == {"workers.count"}
    assert one.keys() == two.keys()
    assert not any(path.startswith("workers.threads") for path in one)


def test_each_worker_has_its_share_of_the_cores_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(CORES)))
    counts = [int(settings_of(launch(name, setting(tmp_path)))["workers.count"]) for name in COUNTS]
    assert [compute_threads(load(None, {"workers.count": count})) for count in counts] == [2, 1]


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str = "") -> ServersReport:
    """A run whose servers do 100 and 96 tokens per second."""
    begun: list[str] = []

    def once(server: Launch, asked: Asked, logs: Path) -> by_turns.Measured:
        begun.append(f"{server.name}, {asked.seed}")
        if server.name == failing:
            raise BenchError("no room")
        rate = 100.0 if server.name == "1 worker" else 96.0
        return "1 (fused)", {
            "decode_8": [{"with_prefill_tok_s": rate}],
            "decode_16": [{"with_prefill_tok_s": 90.0}],
            "chat": [{"output_tok_s": rate, "cached_ratio": rate / 200}],
        }

    monkeypatch.setattr(by_turns, "measured_once", once)
    args = parsed(["--rounds", "2", "--seed", "7", "--json", str(tmp_path / "workers.json")])
    report = run(args, Shapes(), setting(tmp_path))
    assert begun == ["1 worker, 7/1", "2 workers, 7/1", "1 worker, 7/2", "2 workers, 7/2"]
    return report


def test_two_are_judged_against_one_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """K1: a chat that finds less in the cache than beside one worker is told, whatever the throughput."""
    rows = {row.name: row for row in measured(tmp_path, monkeypatch).target_rows()}
    assert {row.best for row in rows.values()} == {"1 worker"}
    assert [(row.ratio, row.reached) for row in rows.values()] == [
        (0.96, True),
        (1.0, True),
        (0.96, True),
        (0.96, False),
    ]


def test_what_was_measured_becomes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(tmp_path, monkeypatch)
    page = markdown([read(tmp_path / "workers.json")])
    assert page.startswith("## 1 worker, 2 workers by turns")
    assert "| 8 streams, output tok/s | 100 | 96 | 1 worker | 0.96 | ≥ 0.95 | reached |" in page


def test_it_fails_with_the_server_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A6: pages that requests never gave back end the measurement (`crowds.abort_storm`)."""
    assert "abort_storm" in workers.DEFAULT_WORKLOADS
    with pytest.raises(BenchError, match="no room"):
        measured(tmp_path, monkeypatch, failing=JUDGED)
