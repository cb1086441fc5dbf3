"""Which attention backend is taken, and why not the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.attention import AttnConfig, NoBackend, select_backend
from kernels.torch_ref import TorchAttention

CONFIG = AttnConfig(4, 2, 64, torch.float32, torch.device("cpu"), 16, 0.125)


def test_auto_takes_what_works_and_says_why_not_the_others() -> None:
    backend, reasons = select_backend(CONFIG)
    assert isinstance(backend, TorchAttention)
    assert set(reasons) == {"vllm-flash-attn", "xformers", "triton"}
    assert all(reasons.values())


def test_a_named_backend_is_taken() -> None:
    backend, _ = select_backend(CONFIG, "torch")
    assert backend.name == "torch"


@pytest.mark.parametrize("name", ["vllm-flash-attn", "xformers", "triton"])
def test_a_named_backend_that_cannot_work_is_an_error_with_the_reason(name: str) -> None:
    """An explicit choice never falls back silently."""
    with pytest.raises(NoBackend, match=f"backend {name}: not part of this release"):
        select_backend(CONFIG, name)


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(NoBackend, match=r"'flash'; known: auto, torch, vllm-flash-attn, xformers, triton"):
        select_backend(CONFIG, "flash")


@pytest.mark.parametrize("requested", ["auto", "torch"])
def test_a_model_that_no_backend_serves_is_an_error_with_the_reason(requested: str) -> None:
    with pytest.raises(NoBackend, match="torch: 5 query heads cannot share 2 KV heads evenly"):
        select_backend(replace(CONFIG, num_q_heads=5), requested)


def test_a_page_size_that_a_backend_cannot_use_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchAttention, "page_multiple", 64)
    with pytest.raises(NoBackend, match="page_size 16 is not a multiple of 64"):
        select_backend(CONFIG, "torch")


def test_a_backend_that_is_not_installed_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchAttention, "unavailable", classmethod(lambda cls: "its library is missing"))
    with pytest.raises(NoBackend, match="its library is missing"):
        select_backend(CONFIG)
