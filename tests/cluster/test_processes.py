"""Finding and ending what a cluster has left running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cluster import processes

HOLDS_A_FILE = "import sys, time; f = open(sys.argv[1], 'w'); print('up', flush=True); sys.argv = []; time.sleep(60)"
IGNORES_TERM = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
)


def started(code: str, *args: str, folder: Path | None = None) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, cwd=folder)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def test_users_of_a_folder_are_found_and_ended_and_nobody_else(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "mine-too"
    mine.mkdir()
    other.mkdir()
    with (mine / "ours").open("w"):
        user = started(HOLDS_A_FILE, str(mine / "log"))
        stubborn = started(IGNORES_TERM, str(mine / "x"))
        bystander = started(HOLDS_A_FILE, str(other / "log"))
        try:
            assert sorted(processes.using(mine)) == sorted([user.pid, stubborn.pid])
            processes.end_users(mine, grace_s=0.2)
            assert (user.wait(5), stubborn.wait(5)) == (-15, -9)
            assert processes.using(mine) == []
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()
            for process in (user, stubborn, bystander):
                assert process.stdout is not None
                process.stdout.close()
