"""How a start is taken apart: processes are seen from outside."""

from __future__ import annotations

import subprocess
import sys
import time

from tests.bench.process_watch import ProcessWatch, Seen, pss_bytes
from tests.bench.startup import _common

PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)', 'grandchild'])"


def test_descendants_are_found_with_their_titles_and_memory() -> None:
    begun = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", PARENT])
    try:
        with ProcessWatch(process.pid) as watch:
            while not any(one.first("grandchild") for one in watch.seen.values()):
                assert time.monotonic() - begun < 60
                time.sleep(0.02)
        (pid,) = watch.seen
        assert begun - 1 < watch.seen[pid].begun <= time.monotonic()
        assert pss_bytes(pid) > 2**20
    finally:
        for child in [*watch.seen, process.pid]:
            subprocess.run(["kill", "-9", str(child)], check=False)
        process.wait()


def test_an_actor_is_built_when_it_does_something_else() -> None:
    seen = Seen(1.0, {"ray::IDLE": 1.1, "ray::name:WorkerActor.__init__": 2.0, "ray::WorkerActor.heartbeat": 3.0})
    assert (seen.first("WorkerActor"), seen.built("WorkerActor")) == (2.0, 3.0)
    assert Seen(1.0, {"ray::WorkerActor.__init__": 2.0}).built("WorkerActor") is None


def test_runs_are_compared_by_what_all_of_them_saw() -> None:
    assert _common([{"a": 1.0, "b": 2.0}, {"a": 3.0}]) == [{"a": 1.0}, {"a": 3.0}]
