"""Tiny random models of every family, saved as Hugging Face saves them, and the judge of greedy decoding."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from actors.messages import SamplingParams
from actors.runner.cpu.runner import CpuRunner
from actors.runner.torch.runner import TorchRunner
from tests.engine.driver import Driver, Told

VOCAB = 199
NEAR_TIE = 1e-3
"""Two sums of the same floats in different order may swap logits that lie closer than this (the logits' spread is about
5); at such a place either token is greedy."""

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama-untied": ("Llama", {"tie_word_embeddings": False}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("Llama", {"head_dim": 32, "num_key_value_heads": 6}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1, "attention_bias": True}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama-dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}}),
    "llama-llama3": ("Llama", {"rope_parameters": {**_LLAMA3, "rope_theta": 500.0}}),
    "llama-yarn": ("Llama", {"rope_parameters": {**_YARN, "rope_theta": 1000.0}}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 24, "attention_bias": False}),
    "qwen3-yarn": ("Qwen3", {"head_dim": 24, "rope_parameters": {**_YARN, "beta_fast": 16, "rope_theta": 1000.0}}),
}

_WIDE = {"hidden_size": 64, "head_dim": 64, "num_attention_heads": 4, "intermediate_size": 112}
FUSED_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "wide-llama": ("Llama", {**_WIDE, "tie_word_embeddings": True}),
    "wide-untied": ("Llama", {**_WIDE, "tie_word_embeddings": False}),
    "wide-biases": ("Llama", {**_WIDE, "attention_bias": True, "mlp_bias": True}),
    "wide-llama3": ("Llama", {**_WIDE, "rope_parameters": {**_LLAMA3, "rope_theta": 500.0}}),
    "wide-mistral": ("Mistral", {**_WIDE, "sliding_window": None, "num_attention_heads": 7, "num_key_value_heads": 1}),
    "wide-qwen2": ("Qwen2", {**_WIDE, "hidden_size": 256, "tie_word_embeddings": True}),
    "wide-qwen3-yarn": (
        "Qwen3",
        {**_WIDE, "head_dim": 128, "rope_parameters": {**_YARN, "beta_fast": 16, "rope_theta": 1000.0}},
    ),
}
"""Sizes that the fused step of `kernels.cpu` computes."""


def build(kind: str, seed: int = 0) -> Any:
    """A transformers model in float32 on which every parameter matters: biases and norms are random too."""
    family, fields = {**KINDS, **FUSED_KINDS}[kind]
    config = getattr(transformers, f"{family}Config")(**{**_SIZES, **fields})
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.2)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.3)
            else:
                parameter.normal_(1.0, 0.2)
    return model


def save(kind: str, folder: Path) -> Any:
    """Save a model to `folder`; returns it."""
    model = build(kind)
    model.save_pretrained(folder)
    return model


def runner(folder: Path, **fields: Any) -> TorchRunner:
    settings: dict[str, Any] = {"dtype": "float32", "kv_tokens": 4096, "page_size": 16}
    return TorchRunner(folder, **{**settings, **fields})


def cpu_runner(folder: Path, **fields: Any) -> CpuRunner:
    settings: dict[str, Any] = {"dtype": "float32", "kv_tokens": 4096, "threads": 2}
    return CpuRunner(folder, **{**settings, **fields})


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed * 1000 + length).choices(range(3, VOCAB), k=length)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, ignore_eos=True)


def generate(driver: Driver, prompts: Sequence[list[int]], num_tokens: int, name: str = "r") -> list[Told]:
    """Let all prompts run together, greedily."""
    told = [driver.submit(f"{name}{i}", ids, sampling=greedy(num_tokens)) for i, ids in enumerate(prompts)]
    driver.run(steps=20_000)
    return told


def assert_greedy(model: Any, prompt_ids: Sequence[int], output: Sequence[int]) -> None:
    """Each token is the one that transformers finds likeliest after all before it: so, by induction, `output` is what
    it would generate greedily."""
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt_ids, *output]])).logits[0, len(prompt_ids) - 1 : -1].float()
    chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
    short = logits.max(dim=1).values - chosen
    wrong = torch.nonzero(short > NEAR_TIE).flatten().tolist()
    assert not wrong, f"token {wrong[0]} of {len(output)} is {short[wrong[0]]:.4f} below the likeliest"


def assert_greedy_on_the_hardest_schedule(runner: TorchRunner, model: Any, num_tokens: int) -> None:
    """In chunks, overlapped, sharing a prefix, and preempted: greedy tokens equal the model's. Closes the runner."""
    driver = Driver(runner, max_step_tokens=7, depth=1)
    prompts = [prompt(1), prompt(50), prompt(50)[:37] + prompt(9)]
    for ids, answer in zip(prompts, generate(driver, prompts, num_tokens), strict=True):
        assert len(answer.ids) == num_tokens
        assert_greedy(model, ids, answer.ids)
    assert driver.engine.snapshot().preemptions > 0
    runner.close()
