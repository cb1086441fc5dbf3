"""`python -m tests.bench quality`: what int8 weights and activations cost in quality, beside the same model without.

On text that every machine with this repository has: its documents and licence, and the topics of Python's own reference
(`pydoc_data.topics`). Told is the perplexity of both, in windows of 512 tokens; how often both find the same next token
likeliest, given the text before it; and how many tokens of greedy replies are equal before the first that differs.
"""

from __future__ import annotations

import argparse
import math
import os
import pydoc_data.topics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from actors.engine.plan import NUM_RESERVED_PAGES
from actors.model.tokenizer import Tokenizer
from actors.runner.cpu.load import load_decoder
from actors.runner.cpu.model import fused_library
from actors.runner.torch.setup import ModelSetup
from tests.bench import bench_models

WINDOW = 512
PROMPT, REPLY, BATCH = 64, 128, 16
ROOT = Path(__file__).parents[2]
DOCUMENTS = ("LICENSE", "README.md", "ARCHITECTURE.md", "BEHAVIOUR.md", "CONTRIBUTING.md")


@dataclass(frozen=True, slots=True)
class Heard:
    """What a model makes of a text: the sum of -log p of its tokens and the likeliest token at each place, by window;
    and its greedy replies to excerpts."""

    surprise: float
    likeliest: Tensor
    replies: list[list[int]]


class Judge:
    """A model by the fused step, with or without quantisation. `close` it."""

    def __init__(self, folder: Path, dtype: str, quantization: str, threads: int) -> None:
        """Raises ModelUnusable, SystemExit where the fused step cannot compute it."""
        kv_tokens = max(WINDOW, BATCH * (PROMPT + REPLY))
        self._setup = setup = ModelSetup.of(folder, dtype=dtype, quantization=quantization, kv_tokens=kv_tokens)
        library = fused_library(setup)
        if isinstance(library, str):
            raise SystemExit(f"not measured: {library}")
        self.name = f"{library.variant.dtype}{', int8' if quantization else ''} ({library.variant.name})"
        self._decoder = load_decoder(setup, library, threads)

    def close(self) -> None:
        self._decoder.close()

    def hear(self, windows: Tensor, prompts: Sequence[Sequence[int]]) -> Heard:
        """`windows` int64 [number, WINDOW]."""
        surprise, likeliest = 0.0, []
        for window in windows:
            logits = self._step([window], [0], torch.arange(WINDOW))[:-1]
            likeliest.append(logits.argmax(dim=1))
            surprise -= float(logits.log_softmax(dim=1).gather(1, window[1:, None]).double().sum())
        replies = []
        for begin in range(0, len(prompts), BATCH):
            replies += self._reply([torch.tensor(ids) for ids in prompts[begin : begin + BATCH]])
        return Heard(surprise, torch.stack(likeliest), replies)

    def _reply(self, prompts: list[Tensor]) -> list[list[int]]:
        rows = len(prompts)
        said = [self._step(prompts, [0] * rows, torch.arange(1, rows + 1) * PROMPT - 1).argmax(dim=1)]
        for done in range(1, REPLY):
            logits = self._step(list(said[-1][:, None]), [PROMPT + done - 1] * rows, torch.arange(rows))
            said.append(logits.argmax(dim=1))
        replies: list[list[int]] = torch.stack(said, dim=1).tolist()
        return replies

    def _step(self, tokens: list[Tensor], starts: list[int], wanted: Tensor) -> Tensor:
        """Logits of sequences, each on pages of its own, that go on at `starts`."""
        q_lens = [len(each) for each in tokens]
        kv_lens = [start + count for start, count in zip(starts, q_lens, strict=True)]
        each = (self._setup.num_pages - NUM_RESERVED_PAGES) // len(tokens)
        table = NUM_RESERVED_PAGES + torch.arange(len(tokens) * each).view(len(tokens), each)
        return self._decoder.step(torch.cat(tokens), q_lens, kv_lens, table, wanted)


def texts() -> dict[str, str]:
    """By name."""
    topics = pydoc_data.topics.topics
    return {
        "this repository": "\n\n".join((ROOT / name).read_text(encoding="utf-8") for name in DOCUMENTS),
        "Python's reference": "\n\n".join(topics[name] for name in sorted(topics)),
    }


def compare(name: str, plain: Heard, quantised: Heard) -> str:
    """One line."""
    places = plain.likeliest.numel()
    before, after = (math.exp(heard.surprise / places) for heard in (plain, quantised))
    same = float((plain.likeliest == quantised.likeliest).float().mean())
    equal = [_common(a, b) for a, b in zip(plain.replies, quantised.replies, strict=True)]
    mean, whole = sum(equal) / len(equal), sum(count == REPLY for count in equal)
    return (
        f"{name:<20}{places:>8}{before:>9.3f}{after:>9.3f}{after / before - 1:>+9.2%}{same:>8.1%}"
        f"{mean:>10.1f}{f'{whole} of {len(equal)}':>12}"
    )


def _common(a: list[int], b: list[int]) -> int:
    """Tokens before the first that differs."""
    return next((index for index, (one, other) in enumerate(zip(a, b, strict=True)) if one != other), len(a))


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench quality", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="default", help=bench_models.HELP)
    parser.add_argument("--dtype", default="auto", help="of what is not int8 (default: what this CPU is best at)")
    parser.add_argument("--tokens", type=int, default=6144, help="of each text (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=16, help="of each text (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args(argv)
    _, folder = bench_models.found(args.model)
    tokenizer = Tokenizer.load(folder)
    asked = {}
    for name, text in texts().items():
        ids = tokenizer.encode(text)[: args.tokens]
        windows = torch.tensor(ids[: len(ids) // WINDOW * WINDOW]).view(-1, WINDOW)
        stride = (len(ids) - PROMPT) // args.prompts
        asked[name] = windows, [ids[begin : begin + PROMPT] for begin in range(0, stride * args.prompts, stride)]
    heard: list[dict[str, Heard]] = []
    for quantization in ("", "int8"):
        judge = Judge(folder, args.dtype, quantization, args.threads)
        print(f"{'int8' if quantization else 'plain'}: {judge.name}", flush=True)
        heard.append({name: judge.hear(*each) for name, each in asked.items()})
        judge.close()
    print(f"{'text':<20}{'tokens':>8}{'plain':>9}{'int8':>9}{'':>9}{'same':>8}{'equal':>10}{f'all {REPLY}':>12}")
    for name in asked:
        print(compare(name, heard[0][name], heard[1][name]))
    return 0
