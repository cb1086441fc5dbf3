"""Tiny GGUF files, written here with llama.cpp's own library, against transformers on the converted folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from actors.model.errors import ModelUnusable
from actors.model.gguf_convert import convert
from actors.model.gguf_weights import to_bf16
from actors.model.text import load_text
from tests.model.tiny_gguf import HEAD_DIM, HEADS, HIDDEN, LAYERS, TinyGguf

FolderOf = Callable[[str], Path]


@pytest.fixture
def tiny(folder_of: FolderOf) -> Callable[..., TinyGguf]:
    def make(arch: str = "llama", family: str = "chatml", *, biases: bool = False) -> TinyGguf:
        return TinyGguf(json.loads((folder_of(family) / "tokenizer.json").read_text()), arch, biases=biases)

    return make


def convert_to(folder: Path, file: Path) -> Path:
    folder.mkdir()
    convert(file, folder, progress=False)
    return folder


def logits_of(folder: Path, ids: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


@pytest.mark.parametrize("arch", ["llama", "llama-biased", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_converted_model_computes_what_the_original_does(
    arch: str, tied: bool, tiny: Callable[..., TinyGguf], tmp_path: Path
) -> None:
    """Names, shapes, Q/K order, biases, norms and head: the logits are those of the weights we began with."""
    source = tiny(arch.partition("-")[0], biases="biased" in arch)
    if not tied:
        source.weights["output.weight"] = source.weights["token_embd.weight"][::-1].copy()
    folder = convert_to(tmp_path / "out", source.write(tmp_path / "tiny.gguf"))
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is tied

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = _hugging_face_names(source.weights)
    state = model.state_dict()
    assert set(state) - {"lm_head.weight"} == set(expected) - {"lm_head.weight"}
    for name, values in expected.items():
        assert torch.equal(state[name], torch.from_numpy(values)), name
    head = source.weights["token_embd.weight" if tied else "output.weight"]
    assert torch.equal(state["lm_head.weight"], torch.from_numpy(head))
    assert torch.isfinite(logits_of(folder, [1, 2, 3])).all()
    assert model.config.rope_parameters["rope_theta"] == 5000.0


def _hugging_face_names(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By llama.cpp's own table, read backwards."""
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, LAYERS)
    attention = ["input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    rest = ["post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    rest += ["self_attn.q_norm", "self_attn.k_norm"]
    names = ["model.embed_tokens", "model.norm", "lm_head"]
    names += [f"model.layers.{layer}.{part}" for layer in range(LAYERS) for part in (*attention, *rest)]
    stem_of = {table.get_name(name): name for name in names}
    return {f"{stem_of[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": value for name, value in weights.items()}


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_1", "F16", "BF16"])
def test_quantised_weights_are_dequantised(quant: str, tiny: Callable[..., TinyGguf], tmp_path: Path) -> None:
    source = tiny()
    source.quant = gguf.GGMLQuantizationType[quant]
    folder = convert_to(tmp_path / "out", source.write(tmp_path / "tiny.gguf"))
    state = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
    for name, values in _hugging_face_names(source.weights).items():
        stored = values if values.ndim == 1 else gguf.dequantize(gguf.quantize(values, source.quant), source.quant)
        assert torch.equal(state[name], torch.from_numpy(stored).to(torch.bfloat16)), name


def test_the_tokenizer_and_template_come_along(
    tiny: Callable[..., TinyGguf], folder_of: FolderOf, tmp_path: Path
) -> None:
    folder = convert_to(tmp_path / "out", tiny().write(tmp_path / "tiny.gguf"))
    tokenizer, template = load_text(folder)
    original, _ = load_text(folder_of("chatml"))
    for text in ("Hello world 123", "Grüße 🎉\n\n  x", "<|im_end|><think>"):
        assert tokenizer.encode(text) == original.encode(text)
        assert tokenizer.encode(text, special=True) == original.encode(text, special=True)
    assert original.control_id("<|im_end|>") in tokenizer.eos_ids
    assert template.sessions_supported is None
    text = "Hello world 123 <|im_end|>"
    assert PreTrainedTokenizerFast.from_pretrained(folder)(text).input_ids == tokenizer.encode(text, special=True)


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "it's 1234 \n ok", ["it", "'s", "Ġ1234", "ĠĊ", "Ġok"]),
        ("smollm", "it's 1234 ok", ["it", "'s", "Ġ", "1", "2", "3", "4", "Ġok"]),
        ("qwen2", "IT'S 1234\n\nok", ["IT", "'S", "Ġ", "1", "2", "3", "4", "ĊĊ", "ok"]),
        ("llama-bpe", "it's 1234\n\nok", ["it", "'s", "Ġ", "123", "4", "ĊĊ", "ok"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", "Ġ", "1", "2"]),
    ],
)
def test_text_is_cut_into_words_as_the_model_was_trained(
    pre: str, text: str, words: list[str], tiny: Callable[..., TinyGguf], tmp_path: Path
) -> None:
    from tokenizers import Tokenizer

    source = tiny()
    source.pre = pre
    folder = convert_to(tmp_path / "out", source.write(tmp_path / "tiny.gguf"))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.pre_tokenizer is not None
    assert [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == words


def test_a_sentencepiece_tokenizer_takes_the_steps_of_its_scores(tmp_path: Path, tiny: Callable[..., TinyGguf]) -> None:
    """Byte fallback, blank in front, merges by score: `▁ab` is reached by way of `ab` because its score is better."""
    source = tiny(family="mistral-prepend")
    source.tokenizer, source.pre = "llama", None
    pieces = ["<unk>", "<s>", "</s>", "▁", "a", "b", "c", "▁a", "ab", "▁ab", "bc", "abc"]
    source.tokens = [*pieces, *(f"<0x{byte:02X}>" for byte in range(256))]
    source.types = [2, 3, 3, *[1] * (len(pieces) - 3), *[6] * 256]
    source.scores = [float(score) for score in (0, 0, 0, -20, -21, -22, -23, -5, -3, -4, -6, -7, *[0] * 256)]
    source.weights = source.random_weights()
    source.meta = {
        "tokenizer.ggml.bos_token_id": ("uint32", 1),
        "tokenizer.ggml.unknown_token_id": ("uint32", 0),
    }
    folder = convert_to(tmp_path / "out", source.write(tmp_path / "tiny.gguf"))
    tokenizer, _ = load_text(folder)
    assert [source.tokens[i] for i in tokenizer.encode("abc a€")] == [
        *("▁ab", "c", "▁a"),
        *("<0xE2>", "<0x82>", "<0xAC>"),
    ]
    assert tokenizer.decode(tokenizer.encode("abc a€")) == " abc a€"
    assert tokenizer.bos_id == 1
    assert tokenizer.adds_bos
    assert 2 in tokenizer.eos_ids
    assert 1 not in tokenizer.encode("<s>")


def test_llama3_rope_scaling_is_recovered(tmp_path: Path, tiny: Callable[..., TinyGguf]) -> None:
    """llama.cpp keeps the scaled frequencies as a tensor; the config keeps how they are made."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    reference = LlamaConfig(
        hidden_size=HIDDEN, num_attention_heads=HEADS, head_dim=HEAD_DIM, max_position_embeddings=131072,
        rope_parameters={**scaling, "rope_theta": 5000.0},
    )  # fmt: skip
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](reference, "cpu")
    plain = 5000.0 ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    source = tiny()
    source.weights["rope_freqs.weight"] = (plain / scaled).numpy()
    folder = convert_to(tmp_path / "out", source.write(tmp_path / "tiny.gguf"))
    assert json.loads((folder / "config.json").read_text())["rope_scaling"] == scaling

    source.weights["rope_freqs.weight"] = np.linspace(1, 9, HEAD_DIM // 2).astype(np.float32)
    with pytest.raises(ModelUnusable, match="not a Llama 3 scaling"):
        convert_to(tmp_path / "other", source.write(tmp_path / "other.gguf"))


def test_what_we_cannot_compute_is_refused_by_name(tmp_path: Path, tiny: Callable[..., TinyGguf]) -> None:
    def refused(source: TinyGguf, match: str) -> None:
        with pytest.raises(ModelUnusable, match=match):
            convert_to(tmp_path / match[:6], source.write(tmp_path / "tiny.gguf"))

    refused(tiny("gemma3"), "architecture 'gemma3' is not supported")
    moe = tiny()
    moe.meta["llama.expert_count"] = ("uint32", 8)
    refused(moe, "mixture-of-experts")
    strange = tiny()
    strange.pre = "martian"
    refused(strange, "pre-tokenizer 'martian'")
    unigram = tiny()
    unigram.tokenizer = "t5"
    refused(unigram, "tokenizer 't5'")
    extra = tiny()
    extra.weights["blk.0.attn_sinks.weight"] = np.zeros(4, np.float32)
    refused(extra, "unknown tensor")
    half = tiny()
    half.weights["blk.0.attn_q.bias"] = np.zeros(HIDDEN, np.float32)
    refused(half, "not all of attn_q")
    longrope = tiny()
    longrope.meta["llama.rope.scaling.type"] = ("string", "longrope")
    refused(longrope, "rope scaling 'longrope'")


def test_files_that_are_no_gguf_are_refused(tmp_path: Path, tiny: Callable[..., TinyGguf]) -> None:
    whole = tiny().write(tmp_path / "tiny.gguf")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole.read_bytes()[:5000])
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    empty = tmp_path / "empty.gguf"
    empty.write_bytes(b"")
    for file in (cut, text, empty):
        with pytest.raises(ModelUnusable, match="not a complete GGUF file"):
            convert_to(tmp_path / file.stem, file)


def test_a_split_model_needs_all_its_parts(tmp_path: Path, tiny: Callable[..., TinyGguf]) -> None:
    whole = tiny().write(tmp_path / "tiny-00001-of-00002.gguf")
    with pytest.raises(ModelUnusable, match="tiny-00002-of-00002"):
        convert_to(tmp_path / "out", whole)


def test_bf16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.4e38, np.inf, -np.inf, np.nan, 1e-40, 0.1], np.float32)
    expected = torch.from_numpy(values).to(torch.bfloat16)
    ours = torch.from_numpy(to_bf16(values).view(np.int16)).view(torch.bfloat16)
    assert torch.equal(ours.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.isnan(ours[6])
