"""What we read from a config.json, in all its spellings, and what we refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actors.model.card import ModelCard
from actors.model.errors import ModelUnusable

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 199,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


def read(folder: Path, generation: Any = None, **fields: Any) -> ModelCard:
    """Fields set to `...` are left out."""
    config = {key: value for key, value in {**BASE, **fields}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return ModelCard.read(folder)


def test_a_plain_llama(tmp_path: Path) -> None:
    card = read(tmp_path, eos_token_id=2)
    assert (card.family, card.head_dim, card.num_kv_heads, card.max_context) == ("llama", 16, 2, 512)
    assert (card.tied_embeddings, card.qkv_bias, card.output_bias, card.mlp_bias, card.qk_norm) == (False,) * 5
    assert (card.rope.theta, card.rope.kind) == (10000.0, "default")
    assert card.eos_ids == {2}


def test_old_llamas_have_as_many_kv_heads_as_heads(tmp_path: Path) -> None:
    assert read(tmp_path, num_key_value_heads=...).num_kv_heads == 4
    assert read(tmp_path, num_key_value_heads=None).num_kv_heads == 4


@pytest.mark.parametrize("name", ["MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_other_families_must_say_how_many_kv_heads(tmp_path: Path, name: str) -> None:
    """Their default is a number of its own in Hugging Face's code; guessing would read wrong shapes."""
    with pytest.raises(ModelUnusable, match="lacks 'num_key_value_heads'"):
        read(tmp_path, architectures=[name], num_key_value_heads=...)


def test_biases_by_family(tmp_path: Path) -> None:
    """Qwen2 has q, k and v biases whatever the config says; Mistral none; Llama and Qwen3 as `attention_bias` says."""

    def biases(name: str, **fields: Any) -> tuple[bool, bool, bool]:
        card = read(tmp_path, architectures=[name], **fields)
        return card.qkv_bias, card.output_bias, card.mlp_bias

    assert biases("LlamaForCausalLM", attention_bias=True, mlp_bias=True) == (True, True, True)
    assert biases("MistralForCausalLM", attention_bias=True, mlp_bias=True) == (False, False, False)
    assert biases("Qwen2ForCausalLM") == (True, False, False)
    assert biases("Qwen2ForCausalLM", attention_bias=True) == (True, False, False)
    assert biases("Qwen3ForCausalLM", attention_bias=True) == (True, True, False)


def test_head_dim_is_given_or_computed(tmp_path: Path) -> None:
    assert read(tmp_path, head_dim=32).head_dim == 32
    assert read(tmp_path, head_dim=None).head_dim == 16
    qwen3 = read(tmp_path, architectures=["Qwen3ForCausalLM"])
    assert (qwen3.head_dim, qwen3.qk_norm) == (128, True)


def test_both_spellings_of_rope_mean_the_same(tmp_path: Path) -> None:
    yarn = {"factor": 4.0, "original_max_position_embeddings": 128}
    new = read(tmp_path, rope_parameters={"rope_type": "yarn", "rope_theta": 5e5, **yarn}).rope
    old = read(tmp_path, rope_theta=5e5, rope_scaling={"type": "yarn", **yarn}).rope
    mixed = read(tmp_path, rope_theta=5e5, rope_scaling={"type": "yarn", "rope_type": "yarn", **yarn}).rope
    assert new == old == mixed
    assert (new.theta, new.kind, dict(new.parameters)) == (5e5, "yarn", yarn)


def test_where_the_original_length_comes_from(tmp_path: Path) -> None:
    """The config's own field, else the rope's, else the context: as Hugging Face has it."""
    rope = {"rope_type": "yarn", "factor": 2.0}
    name = "original_max_position_embeddings"
    assert read(tmp_path, rope_parameters=rope).rope.parameters[name] == 512
    assert read(tmp_path, rope_parameters={**rope, name: 64}).rope.parameters[name] == 64
    assert read(tmp_path, rope_parameters={**rope, name: 64}, **{name: 32}).rope.parameters[name] == 32


def test_values_that_are_not_numbers_are_as_if_absent(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "attention_factor": None, "truncate": False}
    parameters = read(tmp_path, rope_parameters=rope).rope.parameters
    assert "attention_factor" not in parameters
    assert parameters["truncate"] == 0.0


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [(2, None, {2}), ([2, 3], None, {2, 3}), (2, [5, 6], {5, 6}), (2, {}, {2}), (None, None, set())],
)
def test_ends_come_from_the_generation_config_first(
    tmp_path: Path, config: Any, generation: Any, expected: set[int]
) -> None:
    extra = None if generation is None else {"eos_token_id": generation} if generation else {}
    assert read(tmp_path, extra, eos_token_id=config).eos_ids == expected


def test_windows_that_never_bite_are_served(tmp_path: Path) -> None:
    assert read(tmp_path, architectures=["MistralForCausalLM"], sliding_window=None)
    assert read(tmp_path, architectures=["MistralForCausalLM"], sliding_window=512)
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64}
    assert read(tmp_path, **qwen)
    assert read(tmp_path, **qwen, use_sliding_window=False)
    assert read(tmp_path, **qwen, use_sliding_window=True, max_window_layers=2)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["GemmaForCausalLM"]}, "architecture GemmaForCausalLM is not supported; supported: Llama"),
    ({"architectures": ...}, "architecture unknown"),
    ({"hidden_act": "gelu"}, "activation 'gelu'"),
    ({"quantization_config": {"quant_method": "gptq"}}, r"quantised weights \(gptq\)"),
    ({"architectures": ["MistralForCausalLM"], "sliding_window": 64}, r"sliding-window attention \(64 of 512 tokens\)"),
    (
        {
            "architectures": ["Qwen2ForCausalLM"],
            "sliding_window": 64,
            "use_sliding_window": True,
            "max_window_layers": 1,
        },
        "sliding-window",
    ),
    ({"rope_scaling": {"type": "longrope"}}, "rope scaling 'longrope' is not supported; supported: default, linear"),
    ({"rope_scaling": {"type": "linear"}}, "rope scaling 'linear' lacks factor"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'llama3' lacks low_freq_factor, high_freq_factor"),
    ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ between layers"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, r"only a part of each head \(0.5\)"),
    ({"partial_rotary_factor": 0.25}, r"only a part of each head \(0.25\)"),
    ({"hidden_size": ...}, "lacks 'hidden_size'"),
    ({"rms_norm_eps": ...}, "lacks 'rms_norm_eps'"),
    ({"num_hidden_layers": "many"}, "holds something else than expected"),
    ({"vocab_size": None}, "holds something else than expected"),
    ({"quantization_config": "gptq"}, "holds something else than expected"),
]


@pytest.mark.parametrize(("fields", "reason"), REFUSED)
def test_what_is_not_covered_is_refused_with_the_reason(tmp_path: Path, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelUnusable, match=reason):
        read(tmp_path, **fields)


@pytest.mark.parametrize(
    ("name", "text"), [("config.json", "{"), ("config.json", "[]"), ("generation_config.json", "x")]
)
def test_broken_files_are_named(tmp_path: Path, name: str, text: str) -> None:
    read(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(ModelUnusable, match=name):
        ModelCard.read(tmp_path)


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"config\.json cannot be read"):
        ModelCard.read(tmp_path)
