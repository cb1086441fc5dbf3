"""Which builds there are, which are taken, and what is said where there are none."""

from __future__ import annotations

import platform
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kernels.cpu import build as build_module
from kernels.cpu import library as library_module
from kernels.cpu.build import BuildError, NoCompiler, build, file_name, made_from, sources
from kernels.cpu.library import Library, load
from kernels.cpu.variants import VARIANTS, cpu_flags, runnable
from tests.kernels.cpu import builds
from tests.kernels.cpu.builds import not_built

AVX2 = frozenset({"avx2", "fma", "sse2"})
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A compiler that writes a text. Names of what it made."""
    made: list[str] = []

    def compile_(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        path = Path(command[command.index("-o") + 1])
        path.write_text("library")
        made.append(path.name)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(build_module, "find_compiler", lambda: ["g++"])
    monkeypatch.setattr(build_module.subprocess, "run", compile_)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    return made


def test_only_what_is_missing_or_stale_is_compiled(tmp_path: Path, compiles: list[str]) -> None:
    lines: list[str] = []
    libraries = build(lines.append, tmp_path)
    assert sorted(compiles) == sorted(file_name(variant) for variant in VARIANTS)
    assert len(lines) == len(VARIANTS)
    assert [made_from(path) for path in libraries] == [sources()] * len(VARIANTS)
    compiles.clear()
    assert build(lines.append, tmp_path) == libraries
    assert compiles == []
    libraries[1].with_suffix(".sources").write_text("others")
    libraries[2].unlink()
    build(lines.append, tmp_path)
    assert sorted(compiles) == sorted(path.name for path in libraries[1:3])
    assert [path.name for path in tmp_path.iterdir() if path.suffix not in (".so", ".sources")] == []


def test_what_does_not_compile_is_an_error_with_the_compilers_words(
    tmp_path: Path, compiles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "step.cpp:1: no")
    monkeypatch.setattr(build_module.subprocess, "run", lambda *args, **options: failed)
    with pytest.raises(BuildError, match=r"cannot compile(.|\n)*step.cpp:1: no"):
        build(lambda line: None, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_a_compiler_or_elsewhere_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoCompiler, match="no-such-compiler"):
        build(lambda line: None, tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(NoCompiler, match="not for linux on aarch64"):
        build(lambda line: None, tmp_path)


@pytest.mark.parametrize("words", ["", " -g", " -Wl,-O1 '-DNAME=two words'"])
def test_cxx_may_have_several_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """`CXX="ccache g++"` and the like, as make takes it: the first is looked up, the others are passed on."""
    program = tmp_path / "a compiler"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("CXX", f"'{program}'{words}")
    assert build_module.find_compiler() == [str(program), *shlex.split(words)]
    monkeypatch.setenv("CXX", "'never closed")
    with pytest.raises(NoCompiler, match="No closing quotation"):
        build_module.find_compiler()


def test_a_library_exports_nothing_but_its_interface(library: Library) -> None:
    """Its own libstdc++ stays its own, whatever else is in the process."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("there is no nm")
    path = str(library_module.LIBRARIES / file_name(library.variant))
    listed = subprocess.run([nm, "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in listed.splitlines()}
    assert {"remora_open", "remora_step"} <= names
    assert all(name.startswith("remora_") for name in names)


def test_where_a_compiler_is_required_its_absence_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI must not skip the fused step's tests silently."""

    def none(say: object) -> None:
        raise NoCompiler("there is none")

    monkeypatch.setattr(builds, "build", none)
    monkeypatch.delenv(builds.REQUIRED, raising=False)
    assert builds.not_built.__wrapped__() == "there is none"
    monkeypatch.setenv(builds.REQUIRED, "1")
    with pytest.raises(NoCompiler):
        builds.not_built.__wrapped__()


def test_the_fastest_build_that_the_cpu_runs_is_taken() -> None:
    def names(dtype: str, flags: frozenset[str]) -> list[str]:
        return [variant.name for variant in runnable(dtype, flags)]

    assert names("bfloat16", AVX512 | {"avx512_bf16"}) == ["avx512_bf16"]
    assert names("bfloat16", AVX512) == []
    assert names("float32", AVX512) == ["avx512", "avx2"]
    assert names("float32", AVX2) == ["avx2"]
    assert names("float32", AVX2 - {"fma"}) == []
    assert names("float16", AVX512) == []


def test_a_cpus_flags_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\nprocessor\t: 1\nflags\t\t: fpu\n")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert cpu_flags(cpuinfo) == {"fpu", "avx2", "fma"}
    assert cpu_flags(tmp_path / "none") == frozenset()
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert cpu_flags(cpuinfo) == frozenset()


def test_a_stale_build_is_never_loaded(tmp_path: Path, compiles: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "cpu_flags", lambda: AVX2)
    monkeypatch.setattr(library_module, "LIBRARIES", tmp_path)
    load.cache_clear()
    assert load("float32") == "avx2 is not built (`python -m kernels.cpu.build`)"
    for path in build(lambda line: None, tmp_path):
        path.with_suffix(".sources").write_text("others")
    load.cache_clear()
    assert load("float32") == "avx2 was built from other sources (`python -m kernels.cpu.build`)"
    build(lambda line: None, tmp_path)
    load.cache_clear()
    assert str(load("float32")).startswith("avx2 cannot be loaded: ")  # It is a text.
    load.cache_clear()


def test_this_tree_is_built() -> None:
    """What `make setup` leaves is what the tests run."""
    if why := not_built():
        pytest.skip(why)
    for variant in VARIANTS:
        if variant.needs <= cpu_flags():
            assert isinstance(load(variant.dtype, variant.name), Library)
