"""The xformers adapter and the real library, where it is installed: it has no operator for CPUs, but its masks can be
made there, and its operators say whether they would take what they are given."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.attention import AttnConfig
from kernels.selftest import make_problem
from kernels.xformers_paged import XformersAttention, _library

CONFIG = AttnConfig(8, 2, 64, torch.float16, torch.device("cpu"), 64, 0.125)
ROWS = [(1, 5), (1, 64), (1, 0), (1, 130), (3, 70), (9, 9)]


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    _library.cache_clear()
    yield
    _library.cache_clear()


def test_a_broken_installation_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xformers", None)
    why = XformersAttention.unavailable()
    assert why is not None
    assert why.startswith("xformers cannot be imported: ModuleNotFoundError")


def test_looking_for_it_leaves_its_log_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its warning that attention is not available is not true, and is not passed on."""
    log = logging.getLogger("xformers")
    monkeypatch.setitem(sys.modules, "xformers", None)
    XformersAttention.unavailable()
    assert not log.disabled


def test_its_operators_take_what_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xformers", reason="xformers is not installed (extra `xformers`)")
    library = _library()
    calls: list[tuple[Any, Any]] = []

    def called(query: Tensor, key: Tensor, value: Tensor, attn_bias: Any, scale: float, op: Any) -> Tensor:
        inputs = library.fmha.Inputs(query=query, key=key, value=value, attn_bias=attn_bias, scale=scale)
        inputs.validate_inputs()
        for each in [op] if op is not None else [library.fmha.flash.FwOp, library.fmha.cutlass.FwOp]:
            reasons = [
                why
                for why in each.not_supported_reasons(inputs)
                if "device=cpu" not in why and "wasn't buil" not in why and "is not available" not in why
            ]
            assert not reasons, each.NAME
        calls.append((attn_bias, op))
        return torch.zeros_like(query)

    monkeypatch.setattr(library.fmha, "memory_efficient_attention_forward", called)
    backend = XformersAttention(CONFIG)
    problem = make_problem(CONFIG, ROWS)
    problem.solve(backend)
    (paged, split_k), (packed, _) = calls
    assert paged.k_seqinfo.seqlen.tolist() == [5, 64, 130]
    assert paged.block_tables.tolist() == problem.batch.page_table[[0, 1, 3]].tolist()
    assert split_k is library.split_k
    mask = packed.materialize((1, 12, 79))[0]
    seen = torch.zeros(12, 79, dtype=torch.bool)
    for query in range(3):
        seen[query, : 70 - 3 + query + 1] = True
    for query in range(9):
        seen[3 + query, 70 : 70 + query + 1] = True
    assert torch.equal(mask == 0, seen)
