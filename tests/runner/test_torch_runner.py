"""The torch runner's own promises: refusals, dtypes, and faults that stay with their request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.engine.plan import PENDING, DecodeRow, Decodes, PlanItem, StepPlan
from actors.messages import Outcome, Reason, SamplingParams
from actors.model.errors import ModelUnusable
from actors.runner.torch import choose as choose_module
from actors.runner.torch.inputs import build_inputs
from actors.runner.torch.runner import TorchRunner
from actors.runner.torch.setup import choose_dtype
from kernels.selection import NoBackend
from tests.engine.driver import Driver
from tests.runner import tiny

Saved = Callable[[str], tuple[Path, Any]]


def bad_row(runner: TorchRunner, token: int, value: float) -> None:
    """From now on every row that contains `token` has `value` in its hidden state, and so in its logits."""
    assert runner._model is not None
    with torch.inference_mode():
        embedding = runner._model.decoder._embedding
        embedding[token] = value


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_whose_logits_are_not_finite_ends_alone(
    saved: Saved, depth: int, temperature: float, value: float, caplog: pytest.LogCaptureFixture
) -> None:
    """N52: that request ends `internal`; the others' tokens are what they would have been without it. No step breaks,
    not even the one that is launched already and continues the request."""
    folder, _ = saved("llama-untied")
    prompts = [[token for token in tiny.prompt(20 + i) if token != 150] for i in range(4)]
    settings = SamplingParams(max_tokens=40, ignore_eos=True, temperature=temperature, seed=3, logit_bias=((150, -90),))
    expected = []
    for broken in (False, True):
        runner = tiny.runner(folder)
        bad_row(runner, 150, value)
        driver = Driver(runner, max_step_tokens=32, depth=depth)
        told = [driver.submit(f"r{i}", ids, sampling=settings) for i, ids in enumerate(prompts)]
        if broken:
            poisoned = driver.submit("bad", [4, 150, 5], sampling=settings)
        driver.run()
        expected.append([answer.ids for answer in told])
        runner.close()
    assert expected[0] == expected[1]
    assert all(len(ids) == 40 for ids in expected[0])
    assert not caplog.records
    assert poisoned.ids == []
    assert poisoned.end is not None
    assert (poisoned.end.outcome, poisoned.end.reason) == (Outcome.ABORT, Reason.INTERNAL)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_row_that_raises_ends_alone(saved: Saved, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """N52, first run: the backend raises for one row; the others are computed all the same, the loop lives."""
    folder, model = saved("llama")
    real = choose_module.sample

    def sample(logits: torch.Tensor, rows: list[Any], *rest: Any) -> list[int]:
        if any(row.sampling.seed == 666 and row.output_index == 3 for row in rows):
            raise RuntimeError("a fault of the backend")
        return real(logits, rows, *rest)

    monkeypatch.setattr(choose_module, "sample", sample)
    runner = tiny.runner(folder)
    driver = Driver(runner, max_step_tokens=16, depth=depth)
    prompts = [tiny.prompt(9), tiny.prompt(30)]
    told = [driver.submit(f"r{i}", ids, sampling=tiny.greedy(30)) for i, ids in enumerate(prompts)]
    bad = driver.submit("bad", tiny.prompt(5), sampling=SamplingParams(max_tokens=30, ignore_eos=True, seed=666))
    driver.run()
    for ids, answer in zip(prompts, told, strict=True):
        assert len(answer.ids) == 30
        tiny.assert_greedy(model, ids, answer.ids)
    assert len(bad.ids) == 3
    assert bad.end is not None
    assert bad.end.reason is Reason.INTERNAL
    (after,) = tiny.generate(driver, [tiny.prompt(11)], 10, "after")
    tiny.assert_greedy(model, tiny.prompt(11), after.ids)
    runner.close()


@pytest.mark.parametrize(
    ("tokens", "pages", "pending"),
    [([5, 6], [2], True), ([5, 6, 7, 8, 9], [2], False), ([], [2], False), ([1] * 9, [3, 4], False)],
)
def test_a_plan_at_odds_with_itself_is_an_error(tokens: list[int], pages: list[int], pending: bool) -> None:
    """Too few pages, or tokens and count that disagree: found at launch, not in wrong text."""
    count = 2 if tokens == [5, 6] else len(tokens)
    item = PlanItem(1, 0, count, tokens, pages, True, pending, SamplingParams(), 0, 5)
    with pytest.raises(ValueError, match="request 1"):
        build_inputs(StepPlan(1, (item,)), 4)


def test_decodes_in_columns_are_the_step_that_they_are_one_by_one() -> None:
    """A runner computes the same of `StepPlan.decodes` as of an item for each, beside items of its own."""
    rows = [DecodeRow(uid, [uid, uid + 1], SamplingParams(seed=uid), 3) for uid in (2, 4, 6)]
    decodes = Decodes(rows, [5, 3, 7], [11, PENDING, 12])
    chunk = PlanItem(8, 2, 3, [1, 2, 3], [8, 9], True, False, SamplingParams(), 0, 5)
    alone = PlanItem(9, 6, 1, [], [10, 11], True, True, SamplingParams(), 4, 3, [7] * 6)
    plan = StepPlan(1, (alone, chunk), decodes)
    columns, one_by_one = build_inputs(plan, 4), build_inputs(StepPlan(1, tuple(plan.each())), 4)
    for name in ("tokens", "positions", "wanted"):
        assert torch.equal(getattr(columns, name), getattr(one_by_one, name)), name
    assert torch.equal(columns.batch.page_table, one_by_one.batch.page_table)
    assert torch.equal(columns.batch.slots, one_by_one.batch.slots)
    for name in ("uids", "pending", "samples", "scored"):
        assert getattr(columns, name) == getattr(one_by_one, name), name
    assert (columns.batch.q_lens, columns.batch.num_decode) == ([1, 1, 1, 1, 3], 4)
    short = StepPlan(1, (), Decodes([DecodeRow(1, [2], SamplingParams(), 1)], [4], [5]))
    with pytest.raises(ValueError, match="request 1"):
        build_inputs(short, 4)


def test_a_pending_token_that_nobody_sampled_fails_its_request_only(saved: Saved) -> None:
    runner = tiny.runner(saved("llama")[0])
    lost = PlanItem(1, 4, 1, [], [2], True, True, SamplingParams(), 1, 4)
    fine = PlanItem(2, 0, 3, [5, 6, 7], [3], True, False, SamplingParams(), 0, 3)
    result = runner.launch(StepPlan(1, (lost, fine))).wait()
    assert set(result.failed) == {1}
    assert set(result.sampled) == {2}
    runner.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"max_context": 513}, "a context of 513 tokens is asked for; the model has 512"),
        ({"kv_tokens": 15}, "holds no page of 16"),
        ({"kv_tokens": 2**50}, r"no memory for a KV cache of \d+ tokens"),
    ],
)
def test_what_cannot_be_had_is_refused_with_the_numbers(saved: Saved, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelUnusable, match=reason):
        tiny.runner(saved("llama")[0], **settings)


def test_an_explicit_backend_that_cannot_work_is_an_error(saved: Saved) -> None:
    with pytest.raises(NoBackend, match="cannot use the attention backend xformers: it runs on cuda only"):
        tiny.runner(saved("llama")[0], attention="xformers")


def test_why_other_backends_are_not_taken_is_known_to_the_worker(saved: Saved) -> None:
    """It is shown in /v1/stats."""
    runner = tiny.runner(saved("llama")[0])
    assert runner.info.not_taken["xformers"] == "it runs on cuda only, and the model is on cpu"
    assert "attention torch" in runner.info.description
    runner.close()


def test_ids_beyond_the_vocabulary_never_reach_a_step(saved: Saved) -> None:
    """Ends that the model cannot say are dropped; rows that the tokenizer does not know stand for no text."""
    runner = tiny.runner(saved("llama")[0], eos_ids=frozenset({2, 99999}), vocab_bytes=(b"a", b"b"))
    assert runner.info.eos_ids == {2}
    assert runner.info.vocab_bytes == (b"a", b"b") + (b"",) * (tiny.VOCAB - 2)
    settings = SamplingParams(max_tokens=3, min_tokens=3, ignore_eos=True, stop=("zz",))
    driver = Driver(runner)
    assert len(driver.submit("r", [5], sampling=settings).ids) == 0
    driver.run()
    assert len(driver.told["r"].ids) == 3
    runner.close()


def test_a_model_that_cannot_be_loaded_leaves_no_thread(saved: Saved, tmp_path: Path) -> None:
    import shutil
    import threading

    shutil.copy(saved("llama")[0] / "config.json", tmp_path)
    before = threading.active_count()
    with pytest.raises(ModelUnusable, match="no tensor"):
        tiny.runner(tmp_path)
    assert threading.active_count() == before


def test_dtypes_are_named() -> None:
    cpu = torch.device("cpu")
    assert choose_dtype("float16", cpu) is torch.float16
    assert choose_dtype("auto", cpu) in (torch.bfloat16, torch.float32)
    with pytest.raises(ValueError, match="'int8' is not one of auto, float32, bfloat16, float16"):
        choose_dtype("int8", cpu)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_pages_leave_in_the_exchange_layout(saved: Saved, dtype: str) -> None:
    """K7: [page][layer][K, V][slot][kv head][dim], in the cache's own dtype, bit for bit, also NaN."""
    runner = tiny.runner(saved("llama")[0], dtype=dtype, page_size=4, kv_tokens=64)
    assert runner._model is not None
    kv = runner._model.kv
    with torch.inference_mode():
        kv.copy_(torch.randn(kv.shape))
        kv[1, 0, 5, 2, 1, 3] = float("nan")
    data = runner.read_pages([5, 9]).wait()
    assert len(data) == 2 * runner.info.page_bytes
    there = torch.frombuffer(bytearray(data), dtype=kv.dtype).view(2, *kv.shape[:2], *kv.shape[3:])
    for row, page in enumerate((5, 9)):
        assert torch.equal(there[row].nan_to_num(7.0), kv[:, :, page].nan_to_num(7.0))
    before = kv.clone()
    runner.write_pages([3, 4], data).wait()
    before[:, :, 3], before[:, :, 4] = before[:, :, 5], before[:, :, 9]
    assert torch.equal(kv.nan_to_num(7.0), before.nan_to_num(7.0))
    runner.close()


def test_pages_that_are_not_there_are_refused(saved: Saved) -> None:
    """K7: by an error where it is waited for; the runner goes on."""
    runner = tiny.runner(saved("llama")[0], page_size=4, kv_tokens=64)
    size = runner.info.page_bytes
    for page in (-1, runner.info.num_pages):
        with pytest.raises(IndexError, match=f"no page {page}"):
            runner.read_pages([page]).wait()
        with pytest.raises(IndexError, match=f"no page {page}"):
            runner.write_pages([page], bytes(size)).wait()
    assert runner.read_pages([2]).wait() == bytes(size)
    runner.close()


def test_pages_of_another_model_dtype_or_size_have_another_name(saved: Saved, tmp_path: Path) -> None:
    """K7: also where every shape is the same."""
    folder = saved("llama")[0]
    other = tmp_path / "other"
    tiny.build("llama", seed=1).save_pretrained(other)
    runners = [
        tiny.runner(folder),
        tiny.runner(other),
        tiny.runner(folder, dtype="bfloat16"),
        tiny.runner(folder, page_size=8),
    ]
    names = [runner.info.kv_format for runner in runners]
    assert len(set(names)) == len(names)
    for runner in runners:
        runner.close()
