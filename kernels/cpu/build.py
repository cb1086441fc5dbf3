"""`python -m kernels.cpu.build`: compile the operator, where a C++ compiler is there. Nothing but the standard library.

Each variant becomes a shared library with a plain C interface in `lib/`: it needs neither torch nor Python to compile,
and one file serves every version of both. A library knows the sources it was made from, so that a stale one is found
out and not used.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernels.cpu.variants import VARIANTS, Variant

SOURCES = Path(__file__).parent / "native"
LIBRARIES = Path(__file__).parent / "lib"
_COMPILERS = ("g++", "clang++", "c++")
_FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    # A sum must not depend on which of two ways of writing it the compiler found.
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-pthread",
)
_LINK_FLAGS = ("-shared", "-static-libstdc++", "-static-libgcc", "-pthread")
_EXPORTS = "{ global: remora_*; local: *; };\n"
"""A linker's version script: what libstdc++ brings along must not be taken for that of others in the process."""
_GCC_ONLY = ("-Wno-maybe-uninitialized", "-Wno-uninitialized")  # Its own headers are full of them.


class BuildError(RuntimeError):
    """The operator is not compiled. The message says why."""


class NoCompiler(BuildError):
    """It cannot be, here."""


def build(say: Callable[[str], None], target: Path = LIBRARIES) -> list[Path]:
    """Compile what is missing or stale. Returns all libraries. Raises BuildError."""
    wanted = {target / file_name(variant): variant for variant in VARIANTS}
    fingerprint = sources()
    missing = {path: variant for path, variant in wanted.items() if made_from(path) != fingerprint}
    if missing:
        if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
            raise NoCompiler(f"it is written for Linux on x86-64, not for {sys.platform} on {platform.machine()}")
        compiler = find_compiler()
        target.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = {
                variant.name: pool.submit(_compile, compiler, variant, path, fingerprint)
                for path, variant in missing.items()
            }
            for number, (name, job) in enumerate(jobs.items(), 1):
                say(f"kernels/cpu: {name} compiled in {job.result():.0f} s ({number} of {len(jobs)})")
    return list(wanted)


def sources() -> str:
    """A name for the sources as they are; empty where they are not installed."""
    digest = hashlib.blake2b(digest_size=12)
    files = sorted(path for path in SOURCES.glob("*") if path.suffix in (".cpp", ".h"))
    for path in files:
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    digest.update(repr([_FLAGS, _LINK_FLAGS, _EXPORTS, *(variant.compiler_flags for variant in VARIANTS)]).encode())
    return digest.hexdigest() if files else ""


def file_name(variant: Variant) -> str:
    return f"libremora_{variant.name}.so"


def made_from(library: Path) -> str:
    """What `sources` said when it was built; empty if it does not exist."""
    beside = library.with_suffix(".sources")
    return beside.read_text(encoding="ascii").strip() if library.is_file() and beside.is_file() else ""


def find_compiler() -> list[str]:
    """The words of $CXX (`ccache g++`), else the first compiler that there is. Raises NoCompiler."""
    named = os.environ.get("CXX", "").strip()
    try:
        candidates = [shlex.split(named)] if named else [[name] for name in _COMPILERS]
    except ValueError as error:
        raise NoCompiler(f"CXX={named}: {error}") from None
    for first, *others in candidates:
        if path := shutil.which(first):
            return [path, *others]
    raise NoCompiler(f"there is no C++ compiler ({named or ', '.join(_COMPILERS)})")


def _compile(compiler: list[str], variant: Variant, path: Path, fingerprint: str) -> float:
    """Seconds it took. Every file appears whole or not at all: workers may be loading another."""
    started = time.monotonic()
    flags = [
        *_FLAGS,
        *variant.compiler_flags,
        *(() if any("clang" in Path(word).name for word in compiler) else _GCC_ONLY),
    ]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        exports = Path(folder) / "exports"
        exports.write_text(_EXPORTS, encoding="ascii")
        link = [*_LINK_FLAGS, f"-Wl,--version-script={exports}"]
        files = [str(file) for file in sorted(SOURCES.glob("*.cpp"))]
        done = subprocess.run(
            [*compiler, *flags, *link, *files, "-o", str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BuildError(f"{shlex.join(compiler)} cannot compile kernels/cpu for {variant.name}:\n{done.stderr}")
        beside = made.with_suffix(".sources")
        beside.write_text(fingerprint + "\n", encoding="ascii")
        path.with_suffix(".sources").unlink(missing_ok=True)
        made.replace(path)
        beside.replace(path.with_suffix(".sources"))
    return time.monotonic() - started


def main() -> int:
    try:
        build(_say)
    except BuildError as error:
        _say(f"kernels/cpu is not built, so that torch will compute alone: {error}")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
