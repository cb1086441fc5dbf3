"""Layouts there and back, and by hand."""

from __future__ import annotations

import pytest
import torch

from kernels.cpu.packing import interleave, pack_bias, pack_pages, pack_weight, unpack_pages

DTYPES = [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [16, 32, 64])
def test_pages_come_back_as_they_went(dtype: torch.dtype, size: int) -> None:
    """K7: the exchange layout, bit for bit."""
    pages = torch.randn(3, 2, 2, size, 5, 64).to(dtype)
    packed = pack_pages(pages)
    assert packed.shape == (3, 2, 5, 2, size * 64)
    assert torch.equal(unpack_pages(packed, size), pages)


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_number_of_a_page_has_its_place(dtype: torch.dtype) -> None:
    size, heads, dim = 32, 2, 64
    pair = 2 if dtype is torch.bfloat16 else 1
    page = torch.randn(2, size, heads, dim).to(dtype)
    keys, values = pack_pages(page)[1].view(2, -1)
    for slot, component in ((0, 0), (17, 5), (31, 63), (16, 2)):
        place = (slot // 16 * dim // pair + component // pair) * 16 * pair + slot % 16 * pair + component % pair
        assert keys[place] == page[0, slot, 1, component]
        place = (slot // pair * dim + component) * pair + slot % pair
        assert values[place] == page[1, slot, 1, component]


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_are_filled_up_to_whole_panels(dtype: torch.dtype) -> None:
    weight = torch.randn(40, 6).to(dtype)
    packed = pack_weight(weight)
    pair = packed.shape[-1]
    assert packed.shape == (2, 6 // pair, 32, pair)
    for output, column in ((0, 0), (31, 5), (32, 1), (39, 4)):
        assert packed[output // 32, column // pair, output % 32, column % pair] == weight[output, column]
    assert not packed[1, :, 8:].any()
    assert pack_bias(weight[:, 0]).tolist() == [*weight[:, 0].tolist(), *[0.0] * 24]


def test_gate_and_up_lie_by_turns() -> None:
    gate, up = torch.arange(32)[:, None], torch.arange(100, 132)[:, None]
    assert interleave(gate, up).flatten().tolist() == [*range(16), *range(100, 116), *range(16, 32), *range(116, 132)]
