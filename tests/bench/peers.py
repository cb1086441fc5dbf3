"""`python -m tests.bench peers`: Remora, llama.cpp's server and vLLM on the CPU, measured by turns.

All serve the same weights in bf16 with the same number of threads, and the same client on the same machine asks all of
them the same. Servers are found on the PATH, or by REMORA_LLAMA_SERVER and REMORA_VLLM.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from configs.quantization import QUANTIZATIONS
from tests.bench import by_turns
from tests.bench.bench_models import setting_of
from tests.bench.figures import BenchError
from tests.bench.over_http import say
from tests.bench.peer_model import export_gguf
from tests.bench.peer_servers import SERVERS, Missing, Setting
from tests.bench.servers_report import ServersReport, Target
from tests.bench.shapes import Shapes

OURS = "remora"
DEFAULT_WORKLOADS = ("prefill", "decode", "chat")
TARGETS = (
    Target(name="decode, 1 stream, tok/s", workload="decode_1", figure="decode_tok_s", times=1.05),
    Target(name="decode, 8 streams, tok/s", workload="decode_8", figure="decode_tok_s", times=1.6),
    Target(name="decode, 16 streams, tok/s", workload="decode_16", figure="decode_tok_s", times=1.6),
    Target(name="prefill, tok/s", workload="prefill", figure="prefill_tok_s", times=1.0),
    Target(name="chat, output tok/s", workload="chat", figure="output_tok_s", times=1.35),
    Target(name="chat, TTFT p50, s", workload="chat", figure="ttft_p50_s", times=0.2),
)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    by_turns.add_options(parser, DEFAULT_WORKLOADS, rounds=3)
    parser.add_argument("--servers", nargs="+", choices=tuple(SERVERS), default=None, help="default: all there are")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="that compute, of each server"
    )
    parser.add_argument("--quantization", default="", choices=QUANTIZATIONS, help="of Remora's weights")
    return by_turns.parsed(parser, argv, "peers")


def found_servers(setting: Setting, wanted: Sequence[str] | None) -> list[str]:
    """Those that are installed; says what is missing and how to get it. Raises BenchError when one that was asked for
    is missing, or there is nobody to compare Remora with."""
    there = []
    for name, launch in SERVERS.items():
        if wanted is not None and name not in wanted:
            continue
        try:
            launch(setting)
        except Missing as missing:
            if wanted is not None:
                raise
            say(f"{name}: left out: {missing}")
        else:
            there.append(name)
    if wanted is None and there == [OURS]:
        raise BenchError("no peer is installed")
    return there


def run(args: argparse.Namespace, shapes: Shapes, setting: Setting) -> ServersReport:
    """Raises BenchError when it is Remora that fails."""
    names = found_servers(setting, args.servers)
    if "llama-server" in names:
        export_gguf(setting.folder, setting.gguf)
    report = by_turns.new_report(args, setting.model, setting.threads, shapes, OURS, TARGETS)
    launches = {name: partial(SERVERS[name], setting) for name in names}
    by_turns.measure_all(launches, report, args, shapes, setting.logs)
    return report


def main(argv: list[str]) -> int:
    args = parsed(argv)
    by_turns.stop_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="peers-") as logs:
        setting = setting_of(args.model, args.threads, Path(logs), args.quantization)
        report = run(args, Shapes(), setting)
    return by_turns.tell(report, args.json)
