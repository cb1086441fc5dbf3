"""A real Redis server on a free port, with its files in a folder of the test."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

BINARY = shutil.which("redis-server")
REQUIRED = "REMORA_REQUIRE_REDIS"
START_S = 20.0


class RedisServer:
    """`options`: what is given to redis-server beside where it listens (`host`) and keeps its files."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        password: str = "",
        file_bytes: int | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.folder = folder
        self.host = host
        self.port = free_port()
        self.password = password
        self._options = options
        self._file_bytes = file_bytes
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        secret = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis://{secret}{self.host}:{self.port}/0"

    def start(self) -> RedisServer:
        """Returns when it answers."""
        assert BINARY is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        where = ["--port", str(self.port), "--bind", self.host, "--dir", str(self.folder), "--save", ""]
        secret = ["--requirepass", self.password] if self.password else []
        with (self.folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [BINARY, *where, "--daemonize", "no", *secret, *self._options],
                stdout=log,
                stderr=log,
                preexec_fn=self._limit if self._file_bytes else None,
                restore_signals=False,  # SIGXFSZ stays ignored: a file that is too long is an error of its write.
            )
        self._wait_until_it_answers()
        return self

    def kill(self) -> None:
        """As a crash would."""
        self._signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.kill()

    def lift_file_limit(self) -> None:
        """For the next start."""
        self._file_bytes = None

    def wait_for_its_end(self) -> None:
        assert self._process is not None
        self._process.wait(START_S)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def _limit(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._file_bytes or -1, resource.RLIM_INFINITY))

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    def _wait_until_it_answers(self) -> None:
        give_up_at = time.monotonic() + START_S
        with contextlib.closing(self.client()) as client:
            while not answers(client):
                assert self._process is not None
                assert self._process.poll() is None, (self.folder / "redis.log").read_text()
                assert time.monotonic() < give_up_at
                time.sleep(0.02)


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def require_redis() -> None:
    """Skips the test where there is no redis-server, unless it must run."""
    if BINARY is None:
        reason = "redis-server is not installed (apt-get install redis-server)"
        if os.environ.get(REQUIRED):
            pytest.fail(f"{reason}, and {REQUIRED} is set")
        pytest.skip(reason)


@contextlib.contextmanager
def redis_server(
    folder: Path, *options: str, password: str = "", file_bytes: int | None = None, host: str = "127.0.0.1"
) -> Iterator[RedisServer]:
    require_redis()
    server = RedisServer(folder, *options, password=password, file_bytes=file_bytes, host=host)
    try:
        yield server.start()
    finally:
        server.stop()
