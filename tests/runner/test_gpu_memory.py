"""How many KV pages a GPU is reckoned to hold: from numbers, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from actors.engine.plan import NUM_RESERVED_PAGES
from actors.model.card import ModelCard, Rope
from actors.model.errors import ModelUnusable
from actors.runner.torch.gpu_memory import (
    GIB,
    ROW_SPLITS,
    GpuMemory,
    page_bytes,
    pages_that_fit,
    step_bytes,
    weight_bytes,
)
from actors.runner.torch.setup import ModelSetup, choose_dtype
from actors.runner.torch.shards import shard_of
from configs import ConfigError, load
from tests.runner import tiny

BF16 = torch.bfloat16
LLAMA_8B = ModelCard(
    family="llama",
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=14336,
    vocab_size=128256,
    norm_eps=1e-5,
    rope=Rope(500000.0),
    max_context=131072,
    tied_embeddings=False,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    eos_ids=frozenset({2}),
)
WHOLE = shard_of(LLAMA_8B)
H200 = GpuMemory(free=int(140 * GIB), total=int(141 * GIB))


def test_the_size_of_a_known_model() -> None:
    """Llama 3.1 8B has 8,030,261,248 parameters, and 128 KiB of K and V for each token."""
    assert weight_bytes(LLAMA_8B, WHOLE, BF16) == 2 * 8_030_261_248
    assert page_bytes(LLAMA_8B, WHOLE, BF16, 64) == 64 * 128 * 1024


@pytest.mark.parametrize("kind", list(tiny.KINDS))
def test_what_is_reckoned_is_what_the_files_hold(kind: str, tmp_path: Path) -> None:
    """Every kind of model: biases, norms of heads, tied embeddings."""
    model = tiny.save(kind, tmp_path)
    card = ModelCard.read(tmp_path)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert weight_bytes(card, shard_of(card), torch.float32) == 4 * numbers


def test_everything_together_takes_the_share_and_no_more() -> None:
    pages = pages_that_fit(LLAMA_8B, WHOLE, BF16, 64, H200, 0.9)
    page = page_bytes(LLAMA_8B, WHOLE, BF16, 64)
    others = weight_bytes(LLAMA_8B, WHOLE, BF16) + step_bytes(LLAMA_8B, WHOLE, BF16)
    assert others + pages * page < 0.9 * H200.total
    assert 800_000 < pages * 64 < 950_000, "tokens, on an H200"
    assert pages_that_fit(LLAMA_8B, WHOLE, BF16, 64, H200, 0.5) < pages


def test_ranks_have_room_for_more_each() -> None:
    """Half of the weights and half of every page: all ranks come to one number that is more than twice as large."""
    alone = pages_that_fit(LLAMA_8B, WHOLE, BF16, 64, H200, 0.9)
    halves = {pages_that_fit(LLAMA_8B, shard_of(LLAMA_8B, rank, 2), BF16, 64, H200, 0.9) for rank in (0, 1)}
    assert len(halves) == 1
    assert halves.pop() > 2 * alone


def test_a_gpu_that_is_too_small_is_refused_with_the_numbers() -> None:
    small = GpuMemory(free=16 * GIB, total=16 * GIB)
    with pytest.raises(ModelUnusable, match=r"90% of the GPU's 16.0 GiB hold weights 15.0 GiB, .* no page of 8.0 MiB"):
        pages_that_fit(LLAMA_8B, WHOLE, BF16, 64, small, 0.9)


def test_memory_that_others_have_is_said() -> None:
    """E: a second process on the GPU; the failure comes before the weights are loaded."""
    shared = GpuMemory(free=60 * GIB, total=141 * GIB)
    with pytest.raises(ModelUnusable, match=r"the GPU has 60.0 GiB free, and 126.* lower engine.gpu_memory_share"):
        pages_that_fit(LLAMA_8B, WHOLE, BF16, 64, shared, 0.9)


def test_at_least_a_page_beside_the_reserved_ones() -> None:
    page = page_bytes(LLAMA_8B, WHOLE, BF16, 64)
    least = weight_bytes(LLAMA_8B, WHOLE, BF16) + step_bytes(LLAMA_8B, WHOLE, BF16) + 3 * GIB // 4
    enough = least + (NUM_RESERVED_PAGES + 1) * page
    assert pages_that_fit(LLAMA_8B, WHOLE, BF16, 64, GpuMemory(enough, enough), 1.0) == NUM_RESERVED_PAGES + 1
    with pytest.raises(ModelUnusable):
        pages_that_fit(LLAMA_8B, WHOLE, BF16, 64, GpuMemory(enough, enough - 1), 1.0)


def test_splits_of_keys_are_reckoned_with() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from kernels.triton_paged.backend import MAX_SPLITS

    assert ROW_SPLITS == MAX_SPLITS


@pytest.mark.parametrize(
    ("capability", "dtype"), [((7, 5), torch.float16), ((8, 0), BF16), ((9, 0), BF16), ((12, 0), BF16)]
)
def test_bfloat16_is_for_gpus_that_compute_in_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype
) -> None:
    """torch emulates it elsewhere, slowly, and no kernel for attention does."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert choose_dtype("auto", torch.device("cuda")) is dtype


def test_a_cpu_has_no_such_number(tmp_path: Path) -> None:
    tiny.save("llama", tmp_path)
    with pytest.raises(ModelUnusable, match="0 tokens is what fits on a GPU, and the model is on cpu"):
        ModelSetup.of(tmp_path, kv_tokens=0)


def test_the_setup_asks_the_gpu_and_takes_the_least_of_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.save("llama", tmp_path)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * GIB, 8 * GIB))
    settings = {"kv_tokens": 0, "device": "cuda", "dtype": "float16", "gpu_memory_share": 0.5}
    setup = ModelSetup.of(tmp_path, **settings)  # type: ignore[arg-type]
    card = setup.card
    memory = GpuMemory(8 * GIB, 8 * GIB)
    assert setup.page_size == 64
    assert setup.num_pages == pages_that_fit(card, shard_of(card), torch.float16, 64, memory, 0.5)
    both = [pages_that_fit(card, shard_of(card, rank, 2), torch.float16, 64, memory, 0.5) for rank in (0, 1)]
    assert ModelSetup.of(tmp_path, **settings, ranks=2).num_pages == min(both)  # type: ignore[arg-type]


def test_the_setting_is_for_workers_with_gpus() -> None:
    assert load(None, {"engine.kv_tokens": 0, "workers.num_gpus": 1}).engine.kv_tokens == 0
    with pytest.raises(ConfigError, match=r"engine.kv_tokens: 0 means what fits on a GPU, and workers.num_gpus is 0"):
        load(None, {"engine.kv_tokens": 0})
    for share in (0, 1.5):
        with pytest.raises(ConfigError, match=r"engine.gpu_memory_share"):
            load(None, {"engine.gpu_memory_share": share})
