"""The runner for GPUs, on a CPU: what it computes is what the torch runner computes, whoever knows the last tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from actors.engine.plan import PlanItem, StepPlan
from actors.messages import Outcome, SamplingParams
from actors.runner.torch.inputs import SampleRow
from actors.runner.torch.overlapped import OverlappedRunner, Queued, draw_rows, to_host
from actors.runner.torch.runner import TorchRunner
from actors.runner.torch.sampler import NO_TOKEN, sample
from tests.engine.driver import Driver
from tests.runner import tiny

SETTINGS: dict[str, Any] = {"dtype": "float32", "kv_tokens": 1024, "page_size": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny.save("llama", path)
    return path


def requests() -> list[SamplingParams]:
    """Greedy and drawn, narrowed in all ways, and those that the host must see."""
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 5},
        {"temperature": 1.2, "top_p": 0.7},
        {"repetition_penalty": 1.3},
        {"temperature": 1.0, "min_p": 0.1},
        {"logprobs": 2},
        {"frequency_penalty": 0.5, "temperature": 0.7},
        {"logit_bias": ((7, 5.0),)},
    ]
    return [
        SamplingParams(**{"max_tokens": 4 + 3 * index, "ignore_eos": True, "seed": index, **kind})
        for index, kind in enumerate(kinds)
    ]


def talk(runner: TorchRunner, **settings: Any) -> list[list[int]]:
    driver = Driver(runner, **settings)
    told = [
        driver.submit(f"r{index}", tiny.prompt(5 + 9 * index), sampling=sampling)
        for index, sampling in enumerate(requests())
    ]
    driver.run(steps=2000)
    runner.close()
    return [one.ids for one in told]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("max_step_tokens", [7, 256])
def test_tokens_are_those_of_the_torch_runner(folder: Path, depth: int, max_step_tokens: int) -> None:
    """I3, K4: requests that the host sees and those that it does not, in one batch and one after the other; a small
    cache, so that some are preempted and go on."""
    small = {**SETTINGS, "kv_tokens": 320}
    plain = talk(TorchRunner(folder, **small), max_step_tokens=max_step_tokens, max_running=4)
    overlapped = talk(OverlappedRunner(folder, **small), max_step_tokens=max_step_tokens, depth=depth, max_running=4)
    assert overlapped == plain


def item(uid: int, start: int, tokens: list[int], pending: bool, **sampling: Any) -> PlanItem:
    pages = [2 + 2 * uid, 3 + 2 * uid]
    params = SamplingParams(**sampling)
    seen = None if not params.penalised else [5, 6, 7]
    return PlanItem(uid, start, len(tokens) + pending, tokens, pages, True, pending, params, start, 3, seen)


def test_a_step_is_queued_before_the_one_before_it_is_read(folder: Path) -> None:
    """The whole point: the second step's token comes from the first, and no host has seen it."""
    runner = OverlappedRunner(folder, **SETTINGS)
    first = runner.launch(StepPlan(1, (item(0, 0, [5, 6, 7], False),)))
    second = runner.launch(StepPlan(2, (item(0, 3, [], True),)))
    third = runner.launch(StepPlan(3, (item(0, 4, [], True, repetition_penalty=1.0001),)))
    fourth = runner.launch(StepPlan(4, (item(0, 5, [], True),)))
    tokens = [handle.wait().sampled[0] for handle in (first, second, third, fourth)]
    runner.close()
    plain = TorchRunner(folder, **SETTINGS)
    known: list[int] = []
    for number in range(4):
        start = 0 if not number else 2 + number
        step = item(0, start, [5, 6, 7] if not number else known[-1:], False)
        known.append(plain.launch(StepPlan(number + 1, (step,))).wait().sampled[0])
    plain.close()
    assert tokens == known


def test_a_row_that_is_not_finite_fails_alone_and_its_next_step_hurts_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = OverlappedRunner(folder, **SETTINGS)
    model = runner._model
    assert model is not None
    right = model.step

    def spoilt(inputs: Any) -> torch.Tensor:
        logits = right(inputs)
        if len(inputs.tokens) == 6:
            logits[inputs.uids.index(1)] = torch.nan
        return logits

    monkeypatch.setattr(model, "step", spoilt)
    first = runner.launch(StepPlan(1, (item(0, 0, [5, 6, 7], False), item(1, 0, [8, 9, 3], False))))
    second = runner.launch(StepPlan(2, (item(0, 3, [], True), item(1, 3, [], True))))
    result = first.wait()
    assert set(result.sampled) == {0}
    assert result.failed == {1: "the model's logits are not finite"}
    assert set(second.wait().sampled) == {0, 1}
    runner.close()


def test_a_step_that_cannot_be_queued_is_computed_at_once_and_who_is_at_fault_fails_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner = OverlappedRunner(folder, **SETTINGS)
    model = runner._model
    assert model is not None
    right = model.step

    def picky(inputs: Any) -> torch.Tensor:
        if 1 in inputs.uids:
            raise RuntimeError("no")
        return right(inputs)

    first = runner.launch(StepPlan(1, (item(0, 0, [5, 6, 7], False), item(1, 0, [5, 6, 7], False))))
    first.wait()
    monkeypatch.setattr(model, "step", picky)
    second = runner.launch(StepPlan(2, (item(0, 3, [], True), item(1, 3, [], True))))
    third = runner.launch(StepPlan(3, (item(0, 4, [], True),)))
    result = second.wait()
    assert set(result.sampled) == {0}
    assert result.failed == {1: "RuntimeError: no"}
    assert set(third.wait().sampled) == {0}
    assert "could not be queued" in caplog.text
    runner.close()


def test_a_request_whose_limit_comes_while_a_step_is_in_flight_ends_once(folder: Path) -> None:
    driver = Driver(OverlappedRunner(folder, **SETTINGS), depth=1)
    told = [driver.submit(f"r{n}", tiny.prompt(6), sampling=tiny.greedy(n + 1)) for n in range(3)]
    driver.run(steps=50)
    assert [len(one.ids) for one in told] == [1, 2, 3]
    assert all(one.end is not None and one.end.outcome is Outcome.LENGTH for one in told)


def test_rows_are_drawn_as_the_sampler_draws_them() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 50, generator=generator)
    logits[1, 7] = torch.inf
    logits[2] = -torch.inf
    rows = [
        SampleRow(uid, SamplingParams(temperature=temperature, top_p=0.8, seed=uid), 3, 1, None, False)
        for uid, temperature in enumerate([0.0, 1.0, 1.0, 1.0])
    ]
    assert draw_rows(logits, rows).tolist() == sample(logits.clone(), rows, {}, frozenset())
    assert draw_rows(logits, rows).tolist()[1:3] == [NO_TOKEN, NO_TOKEN]
    assert draw_rows(logits[:0], []).tolist() == []


def test_no_row_is_waited_for_while_others_are_drawn() -> None:
    """On a GPU every number that Python asks for waits for the device, and so does what depends on how many there
    are."""

    class Strict(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert not any(
                name in str(function) for name in ("_local_scalar_dense", "nonzero", "masked_select", "unique")
            )
            return function(*args, **(kwargs or {}))

    rows = [SampleRow(uid, each, 3, 1, None, False) for uid, each in enumerate(requests()[:6])]
    with Strict():
        draw_rows(torch.randn(6, 50), rows)


def test_a_queued_step_may_be_read_more_than_once() -> None:
    tokens, arrived = to_host(torch.tensor([4]))
    queued = Queued([SampleRow(9, SamplingParams(), 0, 0, None, False)], tokens, arrived)
    assert queued.result() == queued.result()
    assert queued.result().sampled == {9: 4}
