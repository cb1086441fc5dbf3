"""Tensors of a folder: whole or sharded, and what is wrong with them when something is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from actors.model.card import ModelCard
from actors.model.errors import ModelUnusable
from actors.model.weights import Weights
from actors.runner.torch.decoder import Decoder

INDEX = "model.safetensors.index.json"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 10,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
}


def tensors() -> dict[str, torch.Tensor]:
    return {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


def test_tensors_come_in_the_dtype_asked_for(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        with Weights(tmp_path, dtype) as weights:
            a, b = weights.take("a", (2, 3)), weights.take("b", (4,))
            weights.finish()
        assert a.dtype is b.dtype is dtype
        assert a.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert b.tolist() == [1, 1, 1, 1]


def test_tensors_outlive_the_context(tmp_path: Path) -> None:
    """What needs no conversion is a view of the file, and stays readable."""
    save_file(tensors(), tmp_path / "model.safetensors")
    with Weights(tmp_path, torch.float32) as weights:
        a = weights.take("a", (2, 3))
    assert a.sum() == 15


def test_an_index_says_which_shard_holds_what(tmp_path: Path) -> None:
    """A folder may hold other safetensors too (a consolidated copy, an adapter): the index is what counts."""
    parts = tensors()
    save_file({"a": parts["a"]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": parts["b"]}, tmp_path / "model-00002-of-00002.safetensors")
    save_file({"foreign": torch.ones(2)}, tmp_path / "consolidated.safetensors")
    where = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": where}))
    with Weights(tmp_path, torch.float32) as weights:
        assert not weights.has("foreign")
        assert weights.take("a", (2, 3)).shape == (2, 3)
        assert weights.take("b", (4,)).shape == (4,)
        weights.finish()


def test_the_single_file_is_preferred_to_its_neighbours(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    save_file({"foreign": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    with Weights(tmp_path, torch.float32) as weights:
        assert weights.has("a")
        assert not weights.has("foreign")


def test_shards_without_an_index_are_all_read(tmp_path: Path) -> None:
    for name, tensor in tensors().items():
        save_file({name: tensor}, tmp_path / f"{name}.safetensors")
    with Weights(tmp_path, torch.float32) as weights:
        assert weights.has("a")
        assert weights.has("b")


def test_missing_misshapen_and_left_over_tensors_are_named(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    with Weights(tmp_path, torch.float32) as weights:
        with pytest.raises(ModelUnusable, match="no tensor 'c'"):
            weights.take("c", (1,))
        with pytest.raises(ModelUnusable, match=r"'a' is \(2, 3\); config\.json says \(3, 2\)"):
            weights.take("a", (3, 2))
        with pytest.raises(ModelUnusable, match=r"1 tensors this model has no place for: \['b'\]"):
            weights.finish()


def test_quantised_tensors_are_refused(tmp_path: Path) -> None:
    save_file({"q": torch.ones(2, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with Weights(tmp_path, torch.float32) as weights, pytest.raises(ModelUnusable, match=r"torch\.int8: quantised"):
        weights.take("q", (2,))


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_a_broken_index_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(ModelUnusable, match="index"):
        Weights(tmp_path, torch.float32)


def test_a_missing_and_a_broken_shard_are_named(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0notjson!")
    with pytest.raises(ModelUnusable, match=r"broken\.safetensors cannot be read"):
        Weights(tmp_path, torch.float32)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "absent.safetensors"}}))
    with Weights(tmp_path, torch.float32) as weights, pytest.raises(ModelUnusable, match=r"absent\.safetensors"):
        weights.take("a", (1,))


def test_an_index_that_names_the_wrong_shard_is_found_out(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "one.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"c": "one.safetensors"}}))
    with Weights(tmp_path, torch.float32) as weights, pytest.raises(ModelUnusable, match=r"'c' cannot be read from"):
        weights.take("c", (1,))


# -- what the decoder makes of a folder --------------------------------------------------------------------------------


def llama_tensors() -> dict[str, torch.Tensor]:
    layer = "model.layers.0."
    square = {f"{layer}self_attn.{name}_proj.weight": torch.randn(8, 8) for name in "qkvo"}
    return {
        "model.embed_tokens.weight": torch.randn(10, 8),
        "model.norm.weight": torch.ones(8),
        layer + "input_layernorm.weight": torch.ones(8),
        layer + "post_attention_layernorm.weight": torch.ones(8),
        layer + "mlp.gate_proj.weight": torch.randn(12, 8),
        layer + "mlp.up_proj.weight": torch.randn(12, 8),
        layer + "mlp.down_proj.weight": torch.randn(8, 12),
        **square,
    }


def load(folder: Path, tensors: dict[str, torch.Tensor], *, tied: bool) -> Decoder:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "tie_word_embeddings": tied}))
    save_file(tensors, folder / "model.safetensors")
    with Weights(folder, torch.float32) as weights:
        return Decoder(ModelCard.read(folder), weights, torch.device("cpu"))


def test_an_untied_model_needs_its_head(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"no tensor 'lm_head\.weight'"):
        load(tmp_path, llama_tensors(), tied=False)


def test_a_tied_model_shares_its_embedding_and_a_copy_of_it_costs_nothing(tmp_path: Path) -> None:
    both = llama_tensors()
    without = load(tmp_path / "without", both, tied=True)
    assert without._head._weight is not None
    assert without._head._weight.data_ptr() == without._embedding.data_ptr()
    both["lm_head.weight"] = both["model.embed_tokens.weight"].clone()
    with_copy = load(tmp_path / "with", both, tied=True)
    assert with_copy._head._weight is not None
    assert with_copy._head._weight.data_ptr() == with_copy._embedding.data_ptr()


def test_a_head_that_differs_from_the_embedding_is_used_whatever_the_config_says(tmp_path: Path) -> None:
    """Never dropped in silence: the file knows better than a wrong config, as Hugging Face has it."""
    both = {**llama_tensors(), "lm_head.weight": torch.randn(10, 8)}
    decoder = load(tmp_path, both, tied=True)
    assert decoder._head._weight is not None
    assert torch.equal(decoder._head._weight, both["lm_head.weight"])


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"])
def test_what_the_config_leaves_no_place_for_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelUnusable, match=name.replace(".", r"\.")):
        load(tmp_path, {**llama_tensors(), name: torch.ones(8)}, tied=True)


def test_rope_tables_of_old_checkpoints_are_ignored(tmp_path: Path) -> None:
    old = {**llama_tensors(), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    assert load(tmp_path, old, tied=True)
