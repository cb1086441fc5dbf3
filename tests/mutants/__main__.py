"""`python -m tests.mutants`: take rules away one at a time, and see the tests notice.

A mutant is one change of `mutants.txt`. The packages and tests are copied to a temporary folder, once per process; the
checkout is never touched. For each mutant the tests it names are run on the changed copy, until one of them fails.
First all of them are run on an unchanged copy, where none may fail.

Exit status 1 if a mutant survives, if its text is not in the file exactly once, or if its tests cannot be run at all.
`--jobs` is how many run at a time; words are looked for in the names, and only mutants that have one are tried.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("actors", "cluster", "configs", "kernels", "tests")
WITHOUT_A_SELECTION = ("tests/engine", "tests/worker", "tests/cluster")
PER_MUTANT_S = 300
FAILED = re.compile(r"^(?:FAILED|ERROR) (?:tests/)?(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One rule taken away: `old` becomes `new` in `file`; `tests` are those that have to notice."""

    name: str
    rule: str
    why: str
    file: str
    tests: tuple[str, ...]
    old: str
    new: str

    def fault(self, root: Path) -> str:
        """Why it cannot be applied; empty if it can."""
        path = root / self.file
        if not path.exists():
            return f"{self.file} does not exist"
        count = path.read_text(encoding="utf-8").count(self.old)
        return "" if count == 1 else f"its old text is in {self.file} {count} times"


@dataclass(frozen=True)
class Result:
    killed_by: str
    fault: str
    took_s: float


def read_mutants(text: str) -> list[Mutant]:
    """Parse the data file; ValueError on a block that is not whole."""
    mutants = []
    for block in re.split(r"(?m)^(?=name  )", text)[1:]:
        parts = re.fullmatch(r"(?s)(.*?)---- old\n(.*?)---- new\n(.*?)----\s*", block)
        if parts is None:
            raise ValueError(f"not a mutant:\n{block}")
        fields: dict[str, list[str]] = {}
        for line in parts[1].splitlines():
            key, _, value = line.partition("  ")
            fields.setdefault(key, []).append(value.strip())
        (name,), (rule,), (why,), (file,) = (fields[key] for key in ("name", "rule", "why", "file"))
        old, new = parts[2], parts[3]
        if not old.startswith((" ", "\t")):  # A part of a line.
            old, new = old.rstrip("\n"), new.rstrip("\n")
        mutants.append(Mutant(name, rule, why, file, tuple(fields.get("test", ())), old, new))
    return mutants


def load() -> list[Mutant]:
    return read_mutants((Path(__file__).parent / "mutants.txt").read_text(encoding="utf-8"))


def make_copy(folder: Path) -> None:
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_tests(folder: Path, tests: Sequence[str]) -> tuple[int, str]:
    """(pytest's exit status, what it printed)."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-m",
        "not ray and not model",
    ]
    # A file changed twice within a second would meet its stale compiled form, so none is written.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder)}
    try:
        done = subprocess.run(
            [*command, "--timeout", "60", *(tests or WITHOUT_A_SELECTION)],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PER_MUTANT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, "FAILED (the run did not end)"
    return done.returncode, done.stdout + done.stderr


def try_mutant(mutant: Mutant, folder: Path) -> Result:
    began = time.monotonic()
    fault = mutant.fault(folder)
    if fault:
        return Result("", fault, 0.0)
    path = folder / mutant.file
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        status, printed = run_tests(folder, mutant.tests)
    finally:
        path.write_text(whole, encoding="utf-8")
    took_s = time.monotonic() - began
    if status == 0:
        return Result("", "", took_s)
    names = FAILED.findall(printed)
    if status != 1 or not names:
        return Result("", f"the tests could not be run (status {status}): {printed[-300:]}", took_s)
    return Result(names[0], "", took_s)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    mutants = [mutant for mutant in load() if not options.words or any(word in mutant.name for word in options.words)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as made:
        folders: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(options.jobs):
            make_copy(Path(made) / str(number))
            folders.put(Path(made) / str(number))
        status, printed = run_tests(Path(made) / "0", sorted({test for mutant in mutants for test in mutant.tests}))
        if status:
            print(printed[-3000:], "\nthe tests fail without any mutant", sep="")
            return 1

        def one(mutant: Mutant) -> tuple[Mutant, Result]:
            folder = folders.get()
            try:
                return mutant, try_mutant(mutant, folder)
            finally:
                folders.put(folder)

        with ThreadPoolExecutor(options.jobs) as pool:
            bad = sum(show(*pair) for pair in pool.map(one, mutants))
    print(f"{len(mutants)} mutants, {bad} not killed, {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


def show(mutant: Mutant, result: Result) -> bool:
    """Print a row of the table; whether it is a bad one."""
    verdict = result.killed_by or (f"FAULT: {result.fault}" if result.fault else f"SURVIVES: {mutant.why}")
    print(f"{mutant.name:<55} {mutant.rule:<10} {result.took_s:5.1f} s  {verdict}", flush=True)
    return not result.killed_by


if __name__ == "__main__":
    sys.exit(main())
