"""Scenario files: prose first, then commands, a rule, and what the cluster said.

    # A worker dies in mid-stream.
    cluster workers=2
    open s
    turn r1 session=s prompt=10 max=5
    settle
    ----
    store: s opened for w1, epoch 1
    ...

Lines that begin with # are prose. A block of commands ends with `----`; what follows, up to the next blank line, is
what happened during them, or `ok` for nothing. Every scenario ends with `SimCluster.finish`: it is checked as a whole.

With REMORA_REWRITE=1 in the environment the expectations are written anew. Read the diff, and commit it only if you
understand every line of it: a scenario that was rewritten unread proves nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sim.cluster import SimCluster

Handler = Callable[["Scenario", "Command"], None]
VERBS: dict[str, Handler] = {}


@dataclass
class Command:
    """`verb word word key=value`. Values that are left in `options` when the verb is done were not understood."""

    verb: str
    words: list[str]
    options: dict[str, str]

    def take(self, name: str, kind: Callable[[str], Any], default: Any = None) -> Any:
        return kind(self.options.pop(name)) if name in self.options else default


@dataclass
class Block:
    """Some commands and what the file says happened. `prose`: the lines before them, as they are."""

    prose: list[str]
    commands: list[str]
    expected: list[str]


@dataclass
class Scenario:
    """One run of a file. `said`: how much of the log has been shown."""

    cluster: SimCluster | None = None
    said: int = 0
    sent: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def sim(self) -> SimCluster:
        if self.cluster is None:
            raise AssertionError("a scenario begins with `cluster`")
        return self.cluster

    def say(self, text: str) -> None:
        self.sim.log.append(text)

    def play(self, line: str) -> None:
        command = parse(line)
        handler = VERBS.get(command.verb)
        if handler is None:
            raise AssertionError(f"unknown verb in {line!r}; there are {', '.join(sorted(VERBS))}")
        handler(self, command)
        if command.options:
            raise AssertionError(f"{line!r}: what is {', '.join(command.options)}? Usage: {handler.__doc__}")

    def heard(self) -> list[str]:
        """What was said since the last time."""
        new = self.sim.log[self.said :] if self.cluster else []
        self.said += len(new)
        return new or ["ok"]


def parse(line: str) -> Command:
    verb, *rest = shlex.split(line)
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return Command(verb, [word for word in rest if "=" not in word], options)


def read(text: str) -> list[Block]:
    """The blocks of a file."""
    blocks: list[Block] = []
    prose: list[str] = []
    commands: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line == "----":
            expected = []
            for shown in lines:
                if not shown.strip():
                    break
                expected.append(shown)
            blocks.append(Block(prose, commands, expected))
            prose, commands = [], []
        elif line.startswith("#") or (not line.strip() and not commands):
            prose.append(line)
        elif line.strip():
            commands.append(line)
    if commands:
        raise AssertionError(f"these commands expect nothing, not even `ok`: {commands}")
    return blocks


def play(path: Path, *, rewrite: bool) -> None:
    """Run a file. Raises AssertionError where it differs, unless it is rewritten."""
    scenario, written = Scenario(), []
    for block in read(path.read_text(encoding="utf-8")):
        for line in block.commands:
            scenario.play(line)
        heard = scenario.heard()
        if not rewrite:
            assert heard == block.expected, f"{path.name}, after {block.commands}"
        written.append("\n".join([*block.prose, *block.commands, "----", *heard, ""]))
    scenario.sim.finish()
    if rewrite:
        path.write_text("\n".join(written), encoding="utf-8")


def verb(handler: Handler) -> Handler:
    """Register a handler under its name; its docstring is its usage."""
    VERBS[handler.__name__.rstrip("_").replace("_", "-")] = handler
    return handler
