"""What the benchmark of the edge makes of /proc, and its table; a whole run is `python -m tests.bench edge`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.bench.edge import REST, launch, table, used_s
from tests.bench.figures import Summary, summarise
from tests.e2e.server import wait_until

BUSY = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ntime.sleep(60)"


def test_processes_are_told_apart_by_their_titles() -> None:
    names = {"ray::WorkerActor.poll": "worker", "ray::ProxyActor": "edge", "some/haproxy": "edge", "else": REST}
    started = [subprocess.Popen([title, "-c", BUSY], executable=sys.executable) for title in names]
    try:
        wait_until(lambda: all(used_s(os.getpid()).get(part, 0.0) >= 0.2 for part in set(names.values())), 60)
        wait_until(lambda: used_s(os.getpid())["edge"] >= 0.5, 60)
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_the_settings_of_both_differ_in_one_thing(tmp_path: Path) -> None:
    with_it, without = (launch(haproxy, 0.01, tmp_path).command for haproxy in (True, False))
    assert [one for one in with_it if one not in without and not one.isdigit()] == ["ingress.haproxy=true"]


def test_ratios_are_to_the_first() -> None:
    def told(value: float) -> dict[str, dict[str, Summary]]:
        return {"decode_8": summarise([{"edge µs a token": value}])}

    text = table({"proxy": told(400.0), "haproxy": told(100.0)})
    assert text.splitlines()[-1].split() == ["edge", "µs", "a", "token", "400", "100", "×0.25"]
