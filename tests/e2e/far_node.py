"""A node of a Ray cluster on the far side of two networks, started as an operator does, and again when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.e2e.netns import FAR, TwoNetworks

AGAIN_S = 1.0
"""Between the end of a node and its next start."""
LEAVE_S = 15.0


class FarNode:
    """`ray start --block` under a supervisor, which is what ends and replaces a node that was cut off for too long."""

    def __init__(self, networks: TwoNetworks, address: str, log: Path, *, num_cpus: int = 1) -> None:
        self._command = networks.far(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--address", address,
             "--node-ip-address", FAR, "--num-cpus", str(num_cpus), "--object-store-memory", str(100 * 2**20)]
        )  # fmt: skip
        self._log = log
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self._keeper = threading.Thread(target=self._keep, name="far-node", daemon=True)
        self._keeper.start()

    def close(self) -> None:
        self._over.set()
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        self._keeper.join(LEAVE_S)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _keep(self) -> None:
        while not self._over.is_set():
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            self.starts += 1
            self._process.wait()
            self._over.wait(AGAIN_S)
