"""Results that were written as JSON, read again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.figures import BenchError, Summary


@dataclass(frozen=True, slots=True)
class Written:
    """One file. `measured[label][workload][figure]`: one label, or one for each server of a comparison with peers.
    `tree` is the whole of it."""

    path: Path
    measured: dict[str, dict[str, dict[str, Summary]]]
    tree: dict[str, Any]


def read(path: Path) -> Written:
    """Raises BenchError for a file that is not there or not one of ours."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if "servers" in tree:
            measured = {name: _results(server["results"]) for name, server in tree["servers"].items()}
        else:
            measured = {tree["label"]: _results(tree["results"])}
    except OSError as error:
        raise BenchError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchError(f"{path} does not hold results of this benchmark: {error!r}") from error
    return Written(path, measured, tree)


def _results(tree: dict[str, Any]) -> dict[str, dict[str, Summary]]:
    return {workload: {name: _summary(one) for name, one in figures.items()} for workload, figures in tree.items()}


def _summary(tree: dict[str, Any]) -> Summary:
    return Summary(tree["median"], tree["least"], tree["most"], tuple(tree["values"]))
