"""Backends that let what lies behind a row's last key into their results (`needs_clean_tail`) never find NaN there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from actors.engine.plan import PlanItem, StepPlan
from actors.messages import SamplingParams
from actors.runner.torch.inputs import StepInputs, build_inputs
from actors.runner.torch.local_model import LocalModel, attention_for
from actors.runner.torch.setup import ModelSetup
from actors.runner.torch.tails import CleanTails
from kernels.attention import AttnBatch
from kernels.torch_ref import TorchAttention
from tests.runner import tiny

PAGE = 8


class Leaking(TorchAttention):
    """Multiplies the rest of each row's last page by 0 and adds it, as FA3 and FA4 do. `poison`: what is written is
    NaN instead, as of a request whose numbers have gone wrong."""

    needs_clean_tail = True
    poison = False

    def write_kv(self, k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch) -> None:
        spoilt = float("nan") if self.poison else 1.0
        super().write_kv(k * spoilt, v * spoilt, k_pool, v_pool, batch)

    def forward(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, batch: AttnBatch) -> Tensor:
        out = super().forward(q, k_pool, v_pool, batch)
        first = 0
        for row, (q_len, kv_len) in enumerate(zip(batch.q_lens, batch.kv_lens, strict=True)):
            last = int(batch.page_table[row, (kv_len - 1) // PAGE])
            behind = slice((kv_len - 1) % PAGE + 1, None)
            out[first : first + q_len] += 0 * (k_pool[last, behind].sum() + v_pool[last, behind].sum())
            first += q_len
        return out


class Unprotected(Leaking):
    needs_clean_tail = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny.save("llama", path)
    return path


def model(folder: Path, kind: type[TorchAttention]) -> tuple[LocalModel, TorchAttention]:
    setup = ModelSetup.of(folder, dtype="float32", kv_tokens=16 * PAGE, page_size=PAGE)
    attention = kind(attention_for(setup)[0].config)
    return LocalModel(setup, attention), attention


def step(*rows: tuple[int, int, Sequence[int]]) -> StepInputs:
    """(start, count, pages) of each row."""
    items = [
        PlanItem(uid, start, count, tiny.prompt(start + count)[start:], pages, True, False, SamplingParams(), 0, start)
        for uid, (start, count, pages) in enumerate(rows)
    ]
    return build_inputs(StepPlan(1, tuple(items)), PAGE)


SPOILT = [(0, 3 * PAGE, (2, 3, 4))]
LATER = {
    "pages handed out anew, to a prompt and its decodes": [[(0, 5, (3,))], [(5, 1, (3,))], [(6, 1, (3,))]],
    "a prompt in chunks": [[(0, 3, (4, 2))], [(3, 7, (4, 2))], [(10, 1, (4, 2))]],
    "several rows": [[(0, 2, (2,)), (0, PAGE + 1, (4, 3))], [(2, 1, (2,)), (PAGE + 1, 1, (4, 3))]],
}


@torch.inference_mode()
@pytest.mark.parametrize("later", LATER.values(), ids=LATER)
@pytest.mark.parametrize("kind", [Leaking, Unprotected])
def test_pages_of_a_request_that_went_wrong_spoil_nobody(
    folder: Path, later: list[list[tuple[int, int, tuple[int, ...]]]], kind: type[Leaking]
) -> None:
    """And without the rule they do."""
    subject, attention = model(folder, kind)
    attention.poison = True  # type: ignore[attr-defined]
    subject.step(step(*SPOILT))
    attention.poison = False  # type: ignore[attr-defined]
    right, _ = model(folder, TorchAttention)
    pairs = [(subject.step(step(*rows)), right.step(step(*rows))) for rows in later]
    if kind is Leaking:
        assert all(torch.equal(*pair) for pair in pairs)
    else:
        assert any(got.isnan().any() for got, _ in pairs)


@torch.inference_mode()
def test_the_turn_after_one_that_went_wrong_is_as_if_it_had_not_been(folder: Path) -> None:
    """K2: the same page, kept up to what was committed; the turn that failed wrote behind that. What was committed
    stays, to the last bit."""
    subject, attention = model(folder, Leaking)
    right, _ = model(folder, TorchAttention)
    for each in (subject, right):
        each.step(step((0, 3, (2,))))
    attention.poison = True  # type: ignore[attr-defined]
    subject.step(step((3, 4, (2,))))
    attention.poison = False  # type: ignore[attr-defined]
    for start in (3, 4, 5):
        assert torch.equal(subject.step(step((start, 1, (2,)))), right.step(step((start, 1, (2,)))))
    assert torch.equal(subject.kv[:, :, 2], right.kv[:, :, 2])


@torch.inference_mode()
def test_pages_that_come_back_may_hold_anything_behind_what_is_used(folder: Path) -> None:
    """K7: they were saved whole."""
    subject, _ = model(folder, Leaking)
    right, _ = model(folder, TorchAttention)
    for each in (subject, right):
        each.step(step((0, 3, (2,))))
    values = subject.read([2]).view(-1, PAGE, *subject.kv.shape[4:]).clone()
    values[:, 3:] = torch.nan
    subject.write([5], values.flatten())
    assert torch.equal(subject.step(step((3, 1, (5,)))), right.step(step((3, 1, (2,)))))


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3 * PAGE), st.integers(1, 2 * PAGE), st.permutations(range(6))), max_size=12))
def test_behind_a_rows_end_are_zeros_and_nothing_before_it_is_touched(
    writes: list[tuple[int, int, list[int]]],
) -> None:
    """Steps of one row at any place in any pages; what a step finds in front of it stays."""
    kv = torch.zeros(1, 2, 6, PAGE, 1, 1)
    tails = CleanTails(kv)
    for start, count, pages in writes:
        end = start + count
        before = kv.clone()
        tails.before(AttnBatch([count], [end], torch.tensor([pages]), torch.zeros(0), int(count == 1)))
        last = pages[(end - 1) // PAGE]
        kept = np.ones((6, PAGE), dtype=bool)
        kept[last, (end - 1) % PAGE + 1 :] = False
        assert not kv[0, :, last, (end - 1) % PAGE + 1 :].any()
        assert torch.equal(kv[0][:, kept], before[0][:, kept])
        for position in range(start, end):
            kv[0, :, pages[position // PAGE], position % PAGE] = 1.0 + position


@torch.inference_mode()
def test_decodes_that_go_on_clear_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would cost a launch for each row and step."""
    subject, _ = model(folder, Leaking)
    subject.step(step((0, 5, (2, 3))))

    def unwanted(self: Tensor) -> Tensor:
        raise AssertionError("cleared")

    monkeypatch.setattr(Tensor, "zero_", unwanted)
    for start in range(5, 12):
        subject.step(step((start, 1, (2, 3))))
    with pytest.raises(AssertionError, match="cleared"):
        subject.step(step((0, 1, (3,))))
