"""Which flash-attention library is taken, and that what is written down of the real ones is true where they are."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from kernels.attention import AttnConfig
from kernels.flash.backend import PROVIDER_VARIABLE, FlashAttention, find_library
from kernels.flash.providers import LIBRARIES, FlashLibrary, VllmBundled
from tests.kernels.attention import fake_flash

CONFIG = AttnConfig(4, 2, 64, torch.bfloat16, torch.device("cpu"), 64, 0.125)
HOPPER = (9, 0)
BY_NAME = {library.name: library for library in LIBRARIES}


@pytest.fixture(autouse=True)
def _without_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is installed here: none can be imported, until a test puts one there."""
    monkeypatch.delenv(PROVIDER_VARIABLE, raising=False)
    for library in LIBRARIES:
        monkeypatch.setitem(sys.modules, library.module, None)


def taken(config: AttnConfig = CONFIG, capability: tuple[int, int] = HOPPER) -> str | None:
    library, _ = find_library(config, capability)
    return None if library is None else library.name


def test_the_package_it_is_named_after_comes_first_then_the_living_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    order = [library.name for library in LIBRARIES]
    assert order == ["vllm_flash_attn", "vllm", "fa3", "flash_attn", "fa4"]
    found: list[str | None] = [taken(replace(CONFIG, page_size=256))]
    for library in reversed(LIBRARIES):
        fake_flash.install(monkeypatch, library.module)
        found.append(taken(replace(CONFIG, page_size=256)))
    assert found == [None, None, "flash_attn", "fa3", "vllm", "vllm_flash_attn"], "fa4 is taken on request only"


def test_a_library_is_taken_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in LIBRARIES:
        fake_flash.install(monkeypatch, library.module)
    for name in BY_NAME:
        monkeypatch.setenv(PROVIDER_VARIABLE, name)
        assert taken(replace(CONFIG, page_size=256)) == name


def test_an_unknown_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROVIDER_VARIABLE, "fa9")
    assert FlashAttention.unavailable() == (
        "REMORA_FLASH_PROVIDER is 'fa9'; known: auto, vllm_flash_attn, vllm, fa3, flash_attn, fa4"
    )


def test_why_each_was_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a library cannot do, what importing it said, and what was not asked for."""
    fake_flash.install(monkeypatch, "vllm_flash_attn")
    fake_flash.install(monkeypatch, "flash_attn.flash_attn_interface")
    library, reasons = find_library(replace(CONFIG, head_dim=80), HOPPER)
    assert library is None
    assert reasons["vllm_flash_attn"] == "head_dim 80 is not a multiple of 32 up to 256"
    assert reasons["flash_attn"] == "page_size 64 is not a multiple of 256"
    assert reasons["fa3"].startswith("ModuleNotFoundError")
    assert reasons["fa4"] == "it is taken on request only"


def test_a_namespace_without_the_function_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """flash-attn-4 makes `flash_attn` importable without its interface."""
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.flash_attn_interface", ModuleType("flash_attn.flash_attn_interface"))
    _, reasons = find_library(replace(CONFIG, page_size=256), HOPPER)
    assert "flash_attn_varlen_func" in reasons["flash_attn"]


def test_a_library_that_computes_wrong_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_flash.install(monkeypatch, "vllm_flash_attn")
    right = module.flash_attn_with_kvcache
    module.__dict__["flash_attn_with_kvcache"] = lambda **kwargs: right(**kwargs) * 1.1
    library, reasons = find_library(CONFIG, HOPPER)
    assert library is None
    assert "is WRONG" in reasons["vllm_flash_attn"]


def test_a_library_that_fails_at_its_first_call_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_flash.install(monkeypatch, "vllm_flash_attn")

    def broken(**kwargs: object) -> None:
        raise RuntimeError("no kernel image is available\nfor execution")

    module.__dict__["flash_attn_varlen_func"] = broken
    _, reasons = find_library(CONFIG, HOPPER)
    assert reasons["vllm_flash_attn"] == "the self-test raised RuntimeError: no kernel image is available"


@pytest.mark.parametrize(
    ("name", "capability", "served"),
    [
        ("vllm_flash_attn", (7, 5), False),
        ("vllm_flash_attn", (8, 9), True),
        ("vllm_flash_attn", (10, 0), False),
        ("vllm", (12, 0), True),
        ("fa3", (10, 0), False),
        ("fa4", (8, 0), False),
        ("fa4", (10, 0), True),
    ],
)
def test_which_gpus_a_library_has_kernels_for(
    name: str, capability: tuple[int, int], served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_flash.install(monkeypatch, BY_NAME[name].module)
    assert (not BY_NAME[name]().problems(CONFIG, capability)) is served


@pytest.mark.parametrize("name", list(BY_NAME))
def test_float32_is_for_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_flash.install(monkeypatch, BY_NAME[name].module)
    config = replace(CONFIG, dtype=torch.float32, page_size=256)
    assert BY_NAME[name]().problems(config, HOPPER) == ["torch.float32 is neither float16 nor bfloat16"]


@pytest.mark.parametrize(("capability", "version"), [((8, 0), 2), ((9, 0), 3), ((12, 0), 2)])
def test_vllm_is_asked_for_the_version_that_fits_the_gpu(
    capability: tuple[int, int], version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_flash.install(monkeypatch, VllmBundled.module)
    library = VllmBundled()
    assert library.problems(CONFIG, capability) == []
    assert library.version == version
    backend = FlashAttention(CONFIG, library)
    assert (backend.graphs, backend.needs_clean_tail) == (version == 2, version == 3)
    assert backend.description == "vllm-flash-attn (vllm)"


def test_vllm_without_a_version_for_the_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module = fake_flash.install(monkeypatch, VllmBundled.module)
    module.__dict__["is_fa_version_supported"] = lambda version: False
    assert VllmBundled().problems(CONFIG, HOPPER) == ["none of its versions 3, 2 works on this GPU"]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_the_fakes_have_the_signatures_of_the_real_ones(
    library: type[FlashLibrary], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one is installed, it is looked at; where it is not, there is nothing to compare with."""
    monkeypatch.undo()
    try:
        real = importlib.import_module(library.module)
    except Exception as error:
        pytest.skip(f"{library.module}: {type(error).__name__}: {error}".splitlines()[0])
    for name, fake in fake_flash.FAKES[library.module]().items():
        assert set(inspect.signature(fake).parameters) <= set(inspect.signature(getattr(real, name)).parameters), name
