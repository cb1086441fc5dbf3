"""Results as pictures: time to first token by turn, throughput by concurrency.

Needs matplotlib, which is optional: the extra `bench`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.figures import BenchError, Summary

Results = Mapping[str, Mapping[str, Summary]]
Measured = tuple[str, Results]
"""(label, results by workload and figure)"""
Point = tuple[int, Summary]
CHATS = ("chat", "long_chat")
_TURN = re.compile(r"ttft_p50_turn_(\d+)_s")
_DECODE = re.compile(r"decode_(\d+)")
HOW_TO_GET_IT = "plots need matplotlib: pip install 'remora[bench]' (the figures themselves are complete without)"


class NoPlots(BenchError):
    """matplotlib is not installed. The message says how to get it."""


def draw(measured: Sequence[Measured], stem: Path) -> list[Path]:
    """Write `stem`.ttft.png and `stem`.throughput.png, each with all that was measured; only those that have points.

    Returns what was written. Raises NoPlots.
    """
    written = []
    for name, title, x, y, lines in (
        ("ttft", "time to first token by turn (median; bars: all repeats)", "turn", "seconds", by_turn(measured)),
        ("throughput", "decode throughput (median; bars: all repeats)", "streams", "tokens/s", by_streams(measured)),
    ):
        if lines:
            path = stem.with_name(f"{stem.name}.{name}.png")
            _draw(lines, path, title, x, y)
            written.append(path)
    return written


def by_turn(measured: Sequence[Measured]) -> dict[str, list[Point]]:
    """Points (turn, seconds) by the name of their line."""
    lines = {}
    for label, results in measured:
        for chat in (name for name in CHATS if name in results):
            lines[f"{label}: {chat}"] = _points(results[chat], _TURN)
    return lines


def by_streams(measured: Sequence[Measured]) -> dict[str, list[Point]]:
    """Points (streams, tokens per second) by the name of their line."""
    lines = {}
    for label, results in measured:
        rates = {name: figures["decode_tok_s"] for name, figures in results.items() if _DECODE.fullmatch(name)}
        if rates:
            lines[label] = _points(rates, _DECODE)
    return lines


def _points(figures: Mapping[str, Summary], numbered: re.Pattern[str]) -> list[Point]:
    found = [(int(match[1]), figures[name]) for name in figures if (match := numbered.fullmatch(name))]
    return sorted(found, key=lambda point: point[0])


def _draw(lines: Mapping[str, Sequence[Point]], path: Path, title: str, x: str, y: str) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoPlots(HOW_TO_GET_IT) from error
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for label, points in lines.items():
        medians = [summary.median for _, summary in points]
        below = [summary.median - summary.least for _, summary in points]
        above = [summary.most - summary.median for _, summary in points]
        axes.errorbar([at for at, _ in points], medians, yerr=(below, above), marker="o", capsize=3, label=label)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.set_xticks(sorted({at for points in lines.values() for at, _ in points}))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    FigureCanvasAgg(figure).print_png(path)
