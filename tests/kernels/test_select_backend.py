"""Which attention backend is taken, and why not the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kernels import selection
from kernels.attention import AttentionBackend, AttnConfig
from kernels.selection import BACKENDS, NoBackend, select_backend
from kernels.torch_ref import TorchAttention

CONFIG = AttnConfig(4, 2, 64, torch.float32, torch.device("cpu"), 16, 0.125)
ON_GPU = replace(CONFIG, device=torch.device("cuda"), dtype=torch.float16, page_size=64)


def kind(
    name: str, missing: str | None = None, problems: tuple[str, ...] = (), page: int = 1
) -> type[AttentionBackend]:
    """A backend for GPUs that can be made anywhere; `missing` and `problems` are what it says of itself."""

    class Kind(TorchAttention):
        devices = ("cuda",)
        page_multiple = page

        @classmethod
        def unavailable(cls) -> str | None:
            return missing

        @classmethod
        def unsupported(cls, config: AttnConfig) -> list[str]:
            return list(problems)

    Kind.name = name
    return Kind


def installed(monkeypatch: pytest.MonkeyPatch, **kinds: type[AttentionBackend]) -> None:
    """Exactly these, in this order."""
    there: dict[str, Callable[[], type[AttentionBackend]]] = {
        name.replace("_", "-"): lambda each=each: each for name, each in kinds.items()
    }
    monkeypatch.setattr(selection, "BACKENDS", there)


def test_on_a_cpu_auto_takes_torch_and_says_why_not_the_others() -> None:
    backend, reasons = select_backend(CONFIG)
    assert isinstance(backend, TorchAttention)
    assert set(reasons) == {"vllm-flash-attn", "xformers", "triton"}
    assert all(reasons.values())
    assert reasons["xformers"] == "it runs on cuda only, and the model is on cpu"


def test_auto_prefers_what_was_installed_on_purpose() -> None:
    """Extras come before what every installation has, and plain torch is the last resort."""
    assert list(BACKENDS) == ["vllm-flash-attn", "xformers", "triton", "torch"]


def test_auto_takes_the_first_that_can_serve_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(
        monkeypatch,
        a=kind("a", missing="a is not installed"),
        b=kind("b", problems=("head_dim 64 is odd", "softcap")),
        c=kind("c"),
        d=kind("d"),
    )
    backend, reasons = select_backend(ON_GPU)
    assert backend.name == "c"
    assert reasons == {"a": "a is not installed", "b": "head_dim 64 is odd; softcap", "d": "c comes first"}


def test_a_named_backend_is_taken() -> None:
    backend, reasons = select_backend(CONFIG, "torch")
    assert backend.name == "torch"
    assert reasons["triton"] == "torch was asked for"


@pytest.mark.parametrize("name", ["vllm-flash-attn", "xformers"])
def test_a_named_backend_that_cannot_work_is_an_error_with_the_reason(name: str) -> None:
    """An explicit choice never falls back silently."""
    with pytest.raises(NoBackend, match=f"backend {name}: it runs on cuda only"):
        select_backend(CONFIG, name)


def test_triton_is_for_gpus_unless_its_interpreter_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed (extra `dev` on Linux)")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(NoBackend, match=r"backend triton: .*interpreter only, for tests: TRITON_INTERPRET=1"):
        select_backend(CONFIG, "triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert select_backend(CONFIG, "triton")[0].name == "triton"
    with pytest.raises(NoBackend, match="does not know bfloat16"):
        select_backend(replace(CONFIG, dtype=torch.bfloat16), "triton")
    assert select_backend(CONFIG)[0].name == "torch"


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(NoBackend, match=r"'flash'; known: auto, vllm-flash-attn, xformers, triton, torch"):
        select_backend(CONFIG, "flash")


@pytest.mark.parametrize("requested", ["auto", "torch"])
def test_a_model_that_no_backend_serves_is_an_error_with_the_reason(requested: str) -> None:
    with pytest.raises(NoBackend, match="torch: 5 query heads cannot share 2 KV heads evenly"):
        select_backend(replace(CONFIG, num_q_heads=5), requested)


def test_a_page_size_that_a_backend_cannot_use_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, a=kind("a", page=64))
    with pytest.raises(NoBackend, match="page_size 16 is not a multiple of 64"):
        select_backend(replace(ON_GPU, page_size=16), "a")


def test_no_library_is_imported_for_a_device_it_does_not_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU never loads CUDA to find out that it has none."""

    class Explodes(TorchAttention):
        devices = ("cuda",)

        @classmethod
        def unavailable(cls) -> str | None:
            raise AssertionError("it was looked for")

    installed(monkeypatch, a=Explodes, torch=TorchAttention)
    assert select_backend(CONFIG)[0].name == "torch"
