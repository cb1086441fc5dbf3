"""Two networks on this machine with a cable between them that can be cut: for partitions as they are, where packets
vanish without a word.

All of it lives in a network namespace made for one command, where that is permitted, and ends with it: the machine's
own network is not touched.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

NEAR, FAR = "10.213.0.1", "10.213.0.2"
"""Addresses of the two sides. Processes are on the near side unless they are started on the far one."""
_PORT_OF_FAR = "bridge-far"
_MADE_BY = "REMORA_NETWORK_NAMESPACE"
_TRIES = (("unshare", "--user", "--map-root-user", "--net"), ("unshare", "--net"))


@cache
def _permitted() -> tuple[tuple[str, ...], str]:
    """How to get a namespace that can have two networks, or why there is none."""
    why = ""
    for prefix in _TRIES:
        why = _tried(prefix)
        if not why:
            return prefix, ""
    return (), f"no network namespaces here: {why}"


def _tried(prefix: tuple[str, ...]) -> str:
    """Why two networks cannot be had in this way; empty if they can."""
    try:
        subprocess.run([*prefix, sys.executable, "-m", __name__], check=True, capture_output=True, timeout=100)
    except subprocess.CalledProcessError as error:
        return (error.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""


def why_not() -> str:
    """Why partitions cannot be had here; empty if they can."""
    return "" if is_inside() else _permitted()[1]


def run_alone(command: list[str], within_s: float) -> tuple[int, str]:
    """Run the command in a namespace of its own, and end whatever it leaves behind. Only where `why_not` is empty.

    Its exit status, -1 when it took too long, and what it printed.
    """
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [*_permitted()[0], *command],
        env={**os.environ, _MADE_BY: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        printed, _ = process.communicate(timeout=within_s)
        return process.returncode, printed
    except subprocess.TimeoutExpired as error:
        return -1, f"{(error.output or b'').decode(errors='replace')}\nnot done after {within_s:.0f} s"
    finally:
        _end_all(mark)
        process.wait()


def enter(command: list[str]) -> None:
    """Replace this process by the command in a namespace of its own. Only where `why_not` is empty."""
    prefix = _permitted()[0]
    os.execvpe(prefix[0], [*prefix, *command], {**os.environ, _MADE_BY: uuid.uuid4().hex})


def _end_all(mark: str) -> None:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It has ended meanwhile, or is none of ours.
            if f"{_MADE_BY}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def is_inside() -> bool:
    """Whether this process is in a namespace that was made here."""
    return _MADE_BY in os.environ


class TwoNetworks:
    """The near side is this process's network, the far one that of `holder`, which only sleeps."""

    def __init__(self, holder: int) -> None:
        self._holder = holder

    def far(self, command: list[str]) -> list[str]:
        """The command, on the far side."""
        return ["nsenter", f"--net=/proc/{self._holder}/ns/net", *command]

    def is_far(self, pid: int) -> bool:
        """Whether there is such a process, and it is on the far side."""
        with suppress(OSError):
            return os.readlink(f"/proc/{pid}/ns/net") == os.readlink(f"/proc/{self._holder}/ns/net")
        return False

    def cut(self) -> None:
        """From now on whatever one side sends to the other vanishes."""
        _ip("link", "set", _PORT_OF_FAR, "down")

    def heal(self) -> None:
        _ip("link", "set", _PORT_OF_FAR, "up")


@contextmanager
def two_networks() -> Iterator[TwoNetworks]:
    """In the namespace of this process, which must be one that was made here. Raises RuntimeError."""
    holder = subprocess.Popen(["unshare", "--net", "sleep", "86400"])
    try:
        _await_own_network(holder.pid)
        networks = TwoNetworks(holder.pid)
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "bridge", "type", "bridge")
        _ip("link", "set", "bridge", "up")
        for side, address in (("near", NEAR), ("far", FAR)):
            _ip("link", "add", side, "type", "veth", "peer", "name", f"bridge-{side}")
            _ip("link", "set", f"bridge-{side}", "master", "bridge", "up")
            if side == "far":
                _ip("link", "set", side, "netns", str(holder.pid))
            there = networks.far(["ip"]) if side == "far" else ["ip"]
            _run(*there, "addr", "add", f"{address}/24", "dev", side)
            _run(*there, "link", "set", side, "up")
            _run(*there, "link", "set", "lo", "up")
        yield networks
    finally:
        holder.kill()
        holder.wait()
        subprocess.run(["ip", "link", "del", "bridge"], capture_output=True, check=False)


def _await_own_network(pid: int) -> None:
    mine = os.readlink("/proc/self/ns/net")
    for _ in range(500):
        if os.readlink(f"/proc/{pid}/ns/net") != mine and Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
            return
        subprocess.run(["sleep", "0.01"], check=True)
    raise RuntimeError("the far side got no network of its own")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{' '.join(command)}: {error.stderr.decode(errors='replace').strip()}") from error


_ECHO = f"""
import socket
server = socket.create_server(("{FAR}", 9000))
print("ready", flush=True)
while True:
    with server.accept()[0] as peer:
        peer.sendall(peer.recv(9))
"""


def _try() -> None:
    """Prints whether the far side is heard: before, while and after the cable is cut."""
    with two_networks() as networks:
        echo = subprocess.Popen(networks.far([sys.executable, "-c", _ECHO]), stdout=subprocess.PIPE)
        assert echo.stdout is not None
        echo.stdout.readline()
        try:
            for change in (lambda: None, networks.cut, networks.heal):
                change()
                print(_heard())
        finally:
            echo.kill()
            echo.wait()


def _heard() -> str:
    try:
        with socket.create_connection((FAR, 9000), timeout=0.5) as peer:
            peer.sendall(b"hello")
            return "heard" if peer.recv(9) == b"hello" else "closed"
    except TimeoutError:
        return "silence"


if __name__ == "__main__":
    if "try" in sys.argv[1:]:
        _try()
    else:
        with two_networks():
            pass
