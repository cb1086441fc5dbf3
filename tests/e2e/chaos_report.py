"""What a chaos run found, as a table for people and as a tree for machines."""

from __future__ import annotations

from typing import Any

from tests.e2e.chaos_ledger import Ledger


def table(ledger: Ledger) -> str:
    lines = [f"{'must be 0':<44}{'count':>8}"]
    lines += [f"  {kind:<42}{count:>8}{'' if not count else '  FAULT'}" for kind, count in ledger.counted().items()]
    lines += ["", f"{'what clients did':<44}{'count':>8}"]
    lines += [f"  {what:<42}{count:>8,}" for what, count in sorted(ledger.done.items())]
    lines += ["", f"{'errors that clients heard, and repeated':<44}{'count':>8}"]
    lines += [f"  {what:<42}{count:>8,}" for what, count in ledger.errors.most_common()]
    columns = "".join(f"{name:>9}" for name in ("count", "skipped", "clients", "p50", "p99", "max"))
    lines += ["", f"{'until clients were answered again, seconds':<44}{columns}"]
    for kind in sorted(set(ledger.events) | set(ledger.skipped)):
        lines.append(_row(kind, ledger.recovered_s.get(kind, []), ledger.events[kind], ledger.skipped[kind]))
    lines.append(_row("(any request, for comparison)", ledger.took_s))
    return "\n".join(lines)


def _row(kind: str, took_s: list[float], count: int = 0, skipped: int = 0) -> str:
    cells = f"{count or '':>9}{skipped or '':>9}{len(took_s):>9,}"
    return f"  {kind:<42}" + cells + "".join(f"{figure:>9.2f}" for figure in figures(took_s))


def figures(took_s: list[float]) -> tuple[float, float, float]:
    """p50, p99 and the most, in seconds; 0 of nothing."""
    ordered = sorted(took_s) or [0.0]
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], ordered[-1]


def tree(ledger: Ledger, **about: Any) -> dict[str, Any]:
    return {
        **about,
        "must_be_0": ledger.counted(),
        "faults": [{"kind": kind, "what": what} for kind, what in ledger.faults],
        "done": dict(ledger.done),
        "errors": dict(ledger.errors),
        "events": dict(ledger.events),
        "skipped": dict(ledger.skipped),
        "recovery_s": {
            kind: dict(zip(("p50", "p99", "max"), figures(took_s), strict=True), clients=len(took_s))
            for kind, took_s in ledger.recovered_s.items()
        },
    }
