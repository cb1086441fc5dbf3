"""Servers as processes of their own: how one is started, awaited, asked who it is, and stopped."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.bench.figures import BenchError
from tests.bench.free_port import free_port

START_S, STOP_S, ANSWER_S, LOOK_S = 900.0, 60.0, 10.0, 0.25
"""vLLM compiles for minutes when it starts for the first time."""
TAIL_BYTES = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A server to start. /health is answered with 200 once it can serve. `version`: (route, name) where it says its
    version; None: it is Remora, of the version beside this client. `folder`: where it is started; None: here."""

    name: str
    command: Sequence[str]
    port: int
    version: tuple[str, str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def remora_launch(
    settings: Mapping[str, object], logs: Path, name: str = "remora", python: str = sys.executable
) -> Launch:
    """`remora serve` with a fresh store in `logs`. `settings`: values by path."""
    port = free_port()
    database = logs / "remora.sqlite"
    for left in logs.glob(f"{database.name}*"):
        left.unlink()
    command = [python, "-m", "cluster.cli", "serve", "--port", str(port)]
    for path, value in {**settings, "store.url": f"sqlite:{database}"}.items():
        command += ["--set", f"{path}={str(value).lower() if isinstance(value, bool) else value}"]
    return Launch(name=name, command=command, port=port)


@contextmanager
def started(launch: Launch, logs: Path) -> Iterator[int]:
    """The server, whose process id it gives, answers inside. Raises BenchError with the end of its output when it does
    not come up."""
    with spawned(launch, logs) as process:
        await_health(launch, process, logs)
        yield process.pid


@contextmanager
def spawned(launch: Launch, logs: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Its process, which is stopped at the end; its output goes to a file in `logs`."""
    with _log(launch, logs).open("wb") as output:
        process = subprocess.Popen(
            launch.command,
            cwd=launch.folder,
            env={**os.environ, **launch.environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _stop(process)


def await_health(
    launch: Launch, process: subprocess.Popen[bytes], logs: Path, look_s: float = LOOK_S
) -> tuple[float, float]:
    """When something listened first, and when /health said 200, by the monotonic clock. Raises BenchError."""
    listening = 0.0
    give_up_at = time.monotonic() + START_S
    with httpx.Client(base_url=launch.url, timeout=ANSWER_S, trust_env=False) as http:
        while True:
            status = _health(http)
            listening = listening or (time.monotonic() if status else 0.0)
            if status == httpx.codes.OK:
                return listening, time.monotonic()
            if process.poll() is not None:
                raise BenchError(f"{launch.name} ended with {process.returncode}:\n{_tail(launch, logs)}")
            if time.monotonic() > give_up_at:
                raise BenchError(f"{launch.name} is not ready after {START_S:.0f} s:\n{_tail(launch, logs)}")
            time.sleep(look_s)


def version_of(launch: Launch) -> str:
    """Of a server that runs; Remora's workers say how they compute, too. Raises BenchError."""
    route, name = launch.version or ("/v1/stats", "workers")
    try:
        with httpx.Client(base_url=launch.url, timeout=ANSWER_S, trust_env=False) as http:
            told = http.get(route).raise_for_status().json()[name]
            if launch.version is not None:
                return str(told)
            runners = sorted({worker["runner"] for worker in told})
            return f"{importlib.metadata.version('remora')} ({', '.join(runners)})"
    except (httpx.HTTPError, KeyError) as error:
        raise BenchError(f"{launch.name} does not say its version: {error!r}") from error


def _health(http: httpx.Client) -> int:
    """The status of its answer; 0 when there is none."""
    try:
        return http.get("/health").status_code
    except httpx.TransportError:
        return 0


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Its own processes too: whatever is left of its group after it was asked to go is killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):  # What follows ends it.
            process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):  # Mostly nothing is left.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)


def _log(launch: Launch, logs: Path) -> Path:
    return logs / f"{launch.name}.log"


def _tail(launch: Launch, logs: Path) -> str:
    return _log(launch, logs).read_bytes()[-TAIL_BYTES:].decode(errors="replace")
