"""Int8 weights: products bit by bit, whole steps against float64 that quantises the same way, and what is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cpu import library as library_module
from kernels.cpu.library import Library, load
from kernels.cpu.matrices import Matrices
from kernels.cpu.memory import Arena
from kernels.cpu.quantise import BLOCK, MAX_INPUTS, hadamard, quantise_rows, quantise_weight, rotate
from kernels.cpu.variants import VARIANTS, cpu_flags
from tests.kernels.cpu.rig import SHAPE, Bench, Model

AVX512 = frozenset({"avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq"})


@pytest.fixture
def int8(library: Library) -> Library:
    if not library.variant.int8_needs <= cpu_flags():
        pytest.skip(f"this CPU cannot multiply int8 weights in {library.variant.name}")
    return library


def product(library: Library, x: Tensor, weight: Tensor, bias: Tensor | None = None, threads: int = 2) -> Tensor:
    """By the operator, float32 [rows, outputs]."""
    arena = Arena()
    matrix = Matrices(arena, quantised=True).matrix(weight, bias)
    x = x.to(getattr(torch, library.variant.dtype)).contiguous()
    to = torch.full((len(x), len(weight)), torch.nan)
    sizes = (len(x), ctypes.byref(matrix), *weight.shape)
    assert library.product(x.data_ptr(), *sizes, to.data_ptr(), threads, 1)
    return to


def small(rows: int, numbers: int, seed: int) -> Tensor:
    """Whole numbers that every dtype holds, and float32 their rotation, in whatever order it is summed up."""
    return torch.randint(-8, 9, (rows, numbers), generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.parametrize("rows", [1, 2, 3, 11, 12, 13, 30])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 64), (33, 112), (203, 576), (64, 1536), (40, 16)])
def test_a_product_is_the_sum_of_whole_numbers_times_scales_to_the_bit(
    int8: Library, rows: int, outputs: int, inputs: int
) -> None:
    x, weight = small(rows, inputs, seed=1), small(outputs, inputs, seed=2)
    taken, of_rows = quantise_rows(rotate(x))
    whole, of_outputs = quantise_weight(weight)
    sums = taken.long() @ whole.long().T
    assert torch.equal(product(int8, x, weight), sums.float() * (of_rows[:, None] * of_outputs))
    bias = small(1, outputs, seed=3)[0]
    assert torch.equal(product(int8, x, weight, bias), sums.float() * (of_rows[:, None] * of_outputs) + bias)


def test_the_largest_sums_do_not_overflow(int8: Library) -> None:
    """All of the longest row is 127, and so are the weights, or their opposites."""
    row = torch.zeros(1, MAX_INPUTS)
    row[:, ::BLOCK] = 127.0 * BLOCK**0.5
    assert torch.equal(rotate(row), torch.full_like(row, 127.0))
    weight = torch.cat((row, -row))
    wanted = 127.0 * 127.0 * MAX_INPUTS
    assert product(int8, row.bfloat16().float(), weight.bfloat16().float()).tolist() == [
        [pytest.approx(wanted, rel=1e-2), pytest.approx(-wanted, rel=1e-2)]
    ]


def test_a_rotation_leaves_products_what_they_are() -> None:
    """And what was large in one place is large nowhere."""
    x, weight = torch.randn(3, 240).double(), torch.randn(5, 240).double()
    assert torch.allclose(rotate(x.float()) @ rotate(weight.float()).T, (x @ weight.T).float(), atol=1e-4)
    for size in (16, 32, 64):
        assert torch.equal(hadamard(size) @ hadamard(size), size * torch.eye(size))
    spike = torch.zeros(1, 128)
    spike[0, 70] = 8.0
    assert rotate(spike).abs().tolist() == [[0.0] * 64 + [1.0] * 64]


def test_outliers_cost_little(int8: Library) -> None:
    """Without the rotation one number that is 100 times the others would leave them 7 steps."""
    x, weight = torch.randn(8, 576), torch.randn(64, 576)
    x[:, 100] *= 100
    wanted = x.double() @ weight.double().T
    plain, of_rows = quantise_rows(x)
    whole, of_outputs = quantise_rows(weight)
    unrotated = (plain.double() @ whole.double().T) * of_rows[:, None] * of_outputs
    error, other = ((each - wanted).square().mean() for each in (product(int8, x, weight), unrotated))
    assert error < other / 8


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_has_no_finite_product(int8: Library, value: float) -> None:
    """N52: and no other row knows of it."""
    x, weight = torch.randn(14, 112), torch.randn(40, 112)
    fine = product(int8, x, weight)
    x[3, 70] = value
    got = product(int8, x, weight)
    assert torch.isnan(got[3]).all()
    assert torch.equal(got[:3], fine[:3])
    assert torch.equal(got[4:], fine[4:])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_weight_that_is_not_finite_is_not_hidden(int8: Library, value: float) -> None:
    """N52: a broken checkpoint says nothing that looks right."""
    x, weight = torch.randn(5, 112), torch.randn(40, 112)
    fine = product(int8, x, weight)
    weight[7, 70] = value
    got = product(int8, x, weight)
    assert torch.isnan(got[:, 7]).all()
    assert torch.equal(got[:, :7], fine[:, :7])


def test_a_row_of_zeros_is_zero(int8: Library) -> None:
    x = torch.randn(3, 64)
    x[1] = 0
    got = product(int8, x, torch.randn(32, 64), torch.ones(32))
    assert (got[1] == 1).all()
    assert torch.isfinite(got).all()


@pytest.fixture
def bench(int8: Library) -> Iterator[Any]:
    opened: list[Bench] = []

    def open_(biases: bool = False, norms: bool = False, **shape: Any) -> Bench:
        dtype = getattr(torch, int8.variant.dtype)
        model = Model.random(replace(SHAPE, **shape), dtype, biases=biases, norms=norms)
        opened.append(Bench(model, int8, quantization="int8"))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.mark.parametrize(
    "settings",
    [{}, {"biases": True}, {"norms": True}, {"heads": 9, "kv_heads": 3}, {"hidden": 96, "inner": 240, "head_dim": 32}],
    ids=str,
)
@pytest.mark.parametrize("crowd", [True, False])
def test_steps_are_what_float64_makes_of_the_same_whole_numbers(
    bench: Any, settings: dict[str, Any], crowd: bool
) -> None:
    """Many rows in a step, and few, which every thread prepares for itself. Where a number lies between two whole ones,
    the last bit of a float decides which it becomes, and all that follows in its sequence with it: most sequences must
    be equal, and all near. In bfloat16 that is so everywhere."""
    several = bench(**settings, num_pages=64)
    sequences = [several.sequence(1 + number % 5, seed=number) for number in range(24)]
    parts = [(each, len(each.ids)) for each in sequences]
    logits = several.step(*parts) if crowd else [several.step(part)[0] for part in parts]
    errors = [error(got, several.model.reference(one.ids, "int8")) for one, got in zip(sequences, logits, strict=True)]
    assert max(errors) < 0.1
    if several.model.dtype is torch.float32:
        assert sum(each < 1e-5 for each in errors) >= 18
        plain = [error(got, several.model.reference(one.ids)) for one, got in zip(sequences, logits, strict=True)]
        assert min(plain) > 5e-3, "what int8 costs is more than what is allowed"


def error(logits: Tensor, wanted: Tensor) -> float:
    """The largest, of the largest logit."""
    return float((logits.double() - wanted).abs().max() / wanted.abs().max())


def test_what_a_cpu_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """AVX2 is enough beside float32; the builds for AVX-512 need VNNI, and only for int8."""
    load.cache_clear()
    monkeypatch.setattr(library_module, "cpu_flags", lambda: AVX512 | {"avx512_bf16"})
    why = load("bfloat16", quantization="int8")
    assert why == "no build multiplies int8 weights beside bfloat16 on this CPU: it lacks avx512_vnni"
    load.cache_clear()
    monkeypatch.setattr(library_module, "cpu_flags", lambda: frozenset({"avx2", "fma"}))
    assert "no build computes bfloat16" in str(load("bfloat16", quantization="int8"))
    load.cache_clear()


def test_builds_without_int8_make_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    by_name = {variant.name: variant for variant in VARIANTS}
    assert not by_name["avx512"].int8_needs <= AVX512
    load.cache_clear()
    monkeypatch.setattr(library_module, "cpu_flags", lambda: AVX512)
    found = load("float32", quantization="int8")
    if isinstance(found, Library):
        assert found.variant.name == "avx2"
    else:
        assert "avx2 is not built" in found
    load.cache_clear()
