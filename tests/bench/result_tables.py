"""`python -m tests.bench table FILE ...`: measured results as Markdown, so that no figure is ever typed by hand.

With `--into PAGE.md` it replaces what stands between the page's two markers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.figures import BenchError, Summary
from tests.bench.report import shown
from tests.bench.written import Written, read

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def markdown(found: Sequence[Written]) -> str:
    return "\n\n".join(_section(one) for one in found) + "\n"


def _section(one: Written) -> str:
    parts = [_heading(one.tree), _about(one.tree)]
    if "servers" in one.tree:
        parts += [_targets(one.tree), _side_by_side(one)]
    else:
        parts += [_workload(name, figures) for results in one.measured.values() for name, figures in results.items()]
    return "\n\n".join(part for part in parts if part)


def _heading(tree: dict[str, Any]) -> str:
    if "servers" in tree:
        return f"## {', '.join(tree['servers'])} by turns"
    return f"## {tree['label']} ({tree['target']['mode']})"


def _about(tree: dict[str, Any]) -> str:
    machine, known = tree["machine"], tree["versions"]
    facts = {
        "model": tree["model"] if "servers" in tree else tree["target"]["model"],
        "machine": f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB",
        "versions": ", ".join(f"{name} {version}" for name, version in known.items()),
        "taken": f"{tree['taken_at']}, seed {tree['seed']}, load before {tree['load_before']:.2f}",
    }
    if "servers" in tree:
        facts["servers"] = ", ".join(f"{name} {server['version']}" for name, server in tree["servers"].items())
        facts["rounds"] = f"{tree['rounds']} of {tree['repeats']}, {tree['threads']} threads, bf16"
        facts.update({f"failed: {name}": reason.splitlines()[0] for name, reason in tree["failed"].items()})
    else:
        facts["repeats"] = str(tree["repeats"])
    return "\n".join(f"- {name}: {text}" for name, text in facts.items())


def _targets(tree: dict[str, Any]) -> str:
    if not tree["targets"]:
        return ""
    servers = list(tree["servers"])
    rows = [["to reach", *servers, "against", "ratio", "bound", ""]]
    for row in tree["targets"]:
        values = [shown(row["values"][name]) if name in row["values"] else "–" for name in servers]
        verdict = "reached" if row["reached"] else "**not yet**"
        rows.append([row["name"], *values, row["best"], f"{row['ratio']:.2f}", row["bound"], verdict])
    return _table(rows)


def _side_by_side(one: Written) -> str:
    """Every figure of every server: median (least–most)."""
    names = list(one.measured)
    rows = [["figure", *names]]
    workloads = dict.fromkeys(workload for results in one.measured.values() for workload in results)
    for workload in workloads:
        of_all = [one.measured[name].get(workload, {}) for name in names]
        rows += [
            [f"{workload} `{figure}`", *(_cell(figures.get(figure)) for figures in of_all)]
            for figure in dict.fromkeys(figure for figures in of_all for figure in figures)
        ]
    return _table(rows)


def _workload(name: str, figures: dict[str, Summary]) -> str:
    rows = [[name, "median", "least", "most"]]
    rows += [[f"`{figure}`", shown(one.median), shown(one.least), shown(one.most)] for figure, one in figures.items()]
    return _table(rows)


def _cell(one: Summary | None) -> str:
    return "–" if one is None else f"{shown(one.median)} ({shown(one.least)}–{shown(one.most)})"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head; all columns but the first are to the right."""
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


def put_into(page: Path, tables: str) -> None:
    """Raises BenchError when the page has not both markers, once and in order."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise BenchError(f"{page} has not the two lines {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{after}", encoding="utf-8")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench table", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="results as JSON")
    parser.add_argument("--into", type=Path, default=None, metavar="PAGE", help="default: standard output")
    args = parser.parse_args(argv)
    try:
        tables = markdown([read(path) for path in args.files])
        if args.into is None:
            print(tables, end="")
        else:
            put_into(args.into, tables)
    except (BenchError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0
