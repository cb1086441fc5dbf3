"""A model over several processes says what it says in one: gloo for real, without Ray."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from actors.engine.plan import PlanItem, StepPlan
from actors.messages import Outcome, Reason, SamplingParams
from actors.model.errors import ModelUnusable
from actors.runner.base import ModelRunner
from actors.runner.torch import choose as choose_module
from actors.runner.torch.group import RankGroup, RanksLost
from actors.runner.torch.inputs import StepInputs, build_inputs
from actors.runner.torch.runner import TorchRunner
from configs import HibernateConfig
from tests.engine.driver import Driver
from tests.runner import tiny
from tests.runner.ranks_rig import Helpers, gathered
from tests.runner.test_torch_hibernation import NAMES, talk

Saved = Callable[[str], tuple[Path, Any]]
PAGE = 16
PAGES = list(range(2, 12))
DEALT = [
    ("llama", 2),
    ("llama-untied", 2),
    ("llama-biases", 2),
    ("llama-one-kv-head", 2),
    ("llama-head-dim", 3),
    ("mistral", 2),
    ("qwen2", 2),
    ("qwen3", 2),
]
"""Kinds, and over how many ranks: grouped KV heads, one for two ranks, sums of three, all biases, norms of heads, tied
and untied embeddings, a vocabulary and an inner width that do not come out even."""


def chunk(ids: list[int], start: int, count: int) -> StepInputs:
    item = PlanItem(1, start, count, ids[start : start + count], PAGES, True, False, SamplingParams(), 0, len(ids))
    inputs = build_inputs(StepPlan(1, (item,)), PAGE)
    inputs.wanted = torch.arange(count)
    return inputs


@torch.inference_mode()
def logits_of(runner: TorchRunner, ids: list[int], size: int) -> torch.Tensor:
    """Of every position, computed `size` tokens at a time."""
    assert runner._model is not None
    return torch.cat([runner._model.step(chunk(ids, at, min(size, len(ids) - at))) for at in range(0, len(ids), size)])


@pytest.mark.parametrize(("kind", "size"), DEALT)
def test_logits_and_greedy_tokens_equal_those_of_one_process(
    saved: Saved, ranks: Helpers, kind: str, size: int
) -> None:
    """I3, K3, K4: whole, in chunks and one by one; then the hardest schedule there is: odd chunks, a shared prefix,
    overlap, preemption."""
    folder, model = saved(kind)
    ids = tiny.prompt(100)
    alone = tiny.runner(folder)
    expected = logits_of(alone, ids, 100)
    alone.close()
    with ranks.runner(folder, size, kv_tokens=272) as runner:
        for step in (100, 7, 1):
            ours = logits_of(runner, ids, step)
            assert ours.dtype is torch.float32
            assert (ours - expected).abs().max() < 2e-4, f"chunks of {step}"
        driver = Driver(runner, max_step_tokens=9, depth=1)
        prompts = [tiny.prompt(1), tiny.prompt(50), tiny.prompt(50)[:37] + tiny.prompt(9)]
        for asked, told in zip(prompts, tiny.generate(driver, prompts, 80), strict=True):
            assert len(told.ids) == 80
            tiny.assert_greedy(model, asked, told.ids)
        assert driver.engine.snapshot().preemptions > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_float32(saved: Saved, ranks: Helpers, dtype: str) -> None:
    folder, _ = saved("llama-biases")
    ids = tiny.prompt(100)
    alone = tiny.runner(folder)
    expected = logits_of(alone, ids, 100)
    alone.close()
    with ranks.runner(folder, dtype=dtype) as runner:
        ours = logits_of(runner, ids, 33)
    assert (ours - expected).norm() / expected.norm() < (0.05 if dtype == "bfloat16" else 0.01)


def test_each_rank_holds_its_part_only(saved: Saved, ranks: Helpers) -> None:
    folder, _ = saved("llama-untied")
    alone = tiny.runner(folder)
    with ranks.runner(folder) as runner:
        whole, part = alone._model, runner._model._own  # type: ignore[union-attr]
        assert part.kv.numel() * 2 == whole.kv.numel()
        for name in ("qkv", "o", "gate_up", "down"):
            of_all, ours = (getattr(model.decoder._layers[0], name)._weight for model in (whole, part))
            assert ours.numel() * 2 == of_all.numel(), name
        assert part.decoder._head._weight.shape == (tiny.VOCAB // 2, 48)
    alone.close()


def item(uid: int, start: int, tokens: list[int], pages: list[int], output_index: int = 0) -> PlanItem:
    end = start + len(tokens)
    return PlanItem(uid, start, len(tokens), tokens, pages, True, False, SamplingParams(), output_index, end)


def went_on(runner: ModelRunner, ids: list[int], first: int, pages: list[int], length: int) -> list[int]:
    """`length` tokens behind `ids`, of which those before `first` are in the cache."""
    tokens = [runner.launch(StepPlan(1, (item(1, first, ids[first:], pages),))).wait().sampled[1]]
    while len(tokens) < length:
        at = len(ids) + len(tokens) - 1
        plan = StepPlan(2, (item(1, at, tokens[-1:], pages, len(tokens)),))
        tokens.append(runner.launch(plan).wait().sampled[1])
    return tokens


@pytest.mark.parametrize("kind", ["qwen3", "llama-one-kv-head"])
def test_pages_go_on_in_one_process_and_come_back(saved: Saved, ranks: Helpers, kind: str) -> None:
    """K7, T5: a page outside the cache is the same for any number of ranks, in name and in bytes."""
    folder, _ = saved(kind)
    ids, pages, others = tiny.prompt(50), [2, 3, 4, 5, 6], [20, 11, 9, 8, 7]
    alone = tiny.runner(folder)
    with ranks.runner(folder) as runner:
        assert (runner.info.kv_format, runner.info.page_bytes) == (alone.info.kv_format, alone.info.page_bytes)
        expected = went_on(alone, ids, 0, pages, 20)
        assert went_on(runner, ids, 0, pages, 20) == expected
        out = runner.read_pages(pages[:3]).wait()
        here, there = (torch.frombuffer(bytearray(data), dtype=torch.float32) for data in (out, alone_pages(alone)))
        assert (here - there).abs().max() < 1e-4
        alone.write_pages(others[:3], out).wait()
        assert went_on(alone, ids, 48, others, 20) == expected
        runner.write_pages(others[:3], alone_pages(alone)).wait()
        assert runner.read_pages(others[:3]).wait() == alone_pages(alone)
        assert went_on(runner, ids, 48, others, 20) == expected
        assert runner.read_pages([]).wait() == b""
    alone.close()


def alone_pages(alone: TorchRunner) -> bytes:
    return alone.read_pages([2, 3, 4]).wait()


def test_sessions_of_a_worker_of_two_ranks_hibernate_and_wake(saved: Saved, ranks: Helpers, tmp_path: Path) -> None:
    """K7: the same tokens as with room for all."""
    folder, _ = saved("llama")
    settings: dict[str, Any] = {"page_size": 8, "max_context": 128}
    alone = tiny.runner(folder, kv_tokens=1024, **settings)
    expected, _ = talk(tmp_path / "alone", alone, HibernateConfig(host_bytes=0), sleeps=False)
    with ranks.runner(folder, kv_tokens=160, **settings) as runner:
        budget = HibernateConfig(host_bytes=2**24, below=0.95)
        got, figures = talk(tmp_path / "ranks", runner, budget, sleeps=True)
    assert got == expected
    assert figures["woken_turns"] > len(NAMES)


def test_one_requests_fault_stays_its_own(saved: Saved, ranks: Helpers, monkeypatch: pytest.MonkeyPatch) -> None:
    """N52: where the first rank finds it, before the others are told or after they are done."""
    folder, model = saved("llama")
    real = choose_module.sample

    def sample(logits: torch.Tensor, rows: list[Any], *rest: Any) -> list[int]:
        if any(row.sampling.seed == 666 and row.output_index == 3 for row in rows):
            raise RuntimeError("a fault of the backend")
        return real(logits, rows, *rest)

    monkeypatch.setattr(choose_module, "sample", sample)
    with ranks.runner(folder) as runner:
        driver = Driver(runner, max_step_tokens=16, depth=1)
        told = driver.submit("good", tiny.prompt(9), sampling=tiny.greedy(30))
        bad = driver.submit("bad", tiny.prompt(5), sampling=SamplingParams(max_tokens=30, ignore_eos=True, seed=666))
        driver.run()
        tiny.assert_greedy(model, tiny.prompt(9), told.ids)
        assert len(told.ids) == 30
        assert bad.end is not None
        assert (bad.end.outcome, bad.end.reason, len(bad.ids)) == (Outcome.ABORT, Reason.INTERNAL, 3)
        lost = PlanItem(7, 4, 1, [], [2], True, True, SamplingParams(), 1, 4)
        result = runner.launch(StepPlan(1, (lost, item(8, 0, [5, 6, 7], [3])))).wait()
        assert (set(result.failed), set(result.sampled)) == ({7}, {8})
        for page in (-1, runner.info.num_pages):
            with pytest.raises(IndexError, match=f"no page {page}"):
                runner.read_pages([page]).wait()
        assert went_on(runner, tiny.prompt(9), 0, [4, 5, 6], 20) == told.ids[:20]


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_idle_ranks_sleep_for_longer_than_a_step_may_wait(saved: Saved, ranks: Helpers) -> None:
    """Nothing to do is not a failure, and costs nothing."""
    folder, _ = saved("llama")
    (helper,) = helpers = ranks.take(1)
    runner, losses = gathered(helpers, folder, 2, timeout_s=1.0)
    before = went_on(runner, tiny.prompt(9), 0, [2, 3], 3)
    used = cpu_s(helper.process.pid or 0)
    time.sleep(2.5)
    assert cpu_s(helper.process.pid or 0) - used < 0.2
    assert went_on(runner, tiny.prompt(9), 0, [2, 3], 3) == before
    runner.close()
    assert helper.hear() == "stopped"
    assert losses == []
    ranks.give_back(helpers)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_gone_or_hangs_is_found_by_the_next_step(
    saved: Saved, ranks: Helpers, how: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    """T4: within the time a step may wait; the owner is told once, and nothing hangs afterwards."""
    folder, _ = saved("llama")
    (helper,) = helpers = ranks.take(1)
    runner, losses = gathered(helpers, folder, 2, timeout_s=1.5)
    went_on(runner, tiny.prompt(9), 0, [2, 3], 3)
    assert helper.process.pid is not None
    os.kill(helper.process.pid, how)
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(RanksLost):
            went_on(runner, tiny.prompt(9), 0, [2, 3], 3)
    with pytest.raises(RanksLost):
        runner.read_pages([2]).wait()
    runner.close()
    assert time.monotonic() - began < 60
    assert len(losses) == 1
    helper.process.kill()
    helper.process.join(60)
    dist.destroy_process_group()


def test_ranks_end_when_the_first_one_has(saved: Saved, ranks: Helpers) -> None:
    """No rank waits for ever for a leader that is no more."""
    folder, _ = saved("llama")
    (helper,) = helpers = ranks.take(1)
    runner, _ = gathered(helpers, folder, 2, timeout_s=20.0)
    assert isinstance(runner._group, RankGroup)
    runner._group.close()  # As the end of its process does: without a word.
    assert "Error: " in helper.hear(10)
    runner.close()
    ranks.give_back(helpers)


def test_ranks_that_loaded_something_else_are_refused(saved: Saved, ranks: Helpers) -> None:
    """Not found out by wrong text."""
    folder, _ = saved("llama")
    helpers = ranks.take(1)
    with pytest.raises(ModelUnusable, match=r"rank 1 has .*, 130 pages, cpu; rank 0 has .*, 258 pages"):
        gathered(helpers, folder, 2, 5.0, kv_tokens=4096, of_ranks={"kv_tokens": 2048})
    assert helpers[0].hear() != "stopped"  # It may find the first rank gone before it finds it different.
    ranks.give_back(helpers)


def test_heads_that_cannot_be_dealt_out_are_refused_before_anything_is_loaded(saved: Saved) -> None:
    with pytest.raises(ModelUnusable, match="6 attention heads cannot be split over 4 ranks"):
        tiny.runner(saved("llama")[0], group=RankGroup(0, 4))
