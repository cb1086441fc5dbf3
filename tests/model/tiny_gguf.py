"""Tiny GGUF files with random weights, written with llama.cpp's own library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from actors.model.gguf_weights import to_bf16

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, LAYERS, CONTEXT = 64, 4, 2, 16, 96, 2, 128
CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"


class TinyGguf:
    """What goes into a test's file. Tests change it before `write`."""

    def __init__(self, spec: dict[str, Any], arch: str, *, biases: bool = False) -> None:
        self.arch = arch
        self.biases = biases
        vocab = spec["model"]["vocab"]
        added = {token["id"]: token for token in spec["added_tokens"]}
        pieces = {i: piece for piece, i in vocab.items()} | {i: token["content"] for i, token in added.items()}
        self.tokens = [pieces[i] for i in range(len(pieces))]
        self.types = [1 if i not in added else 3 if added[i]["special"] else 4 for i in range(len(pieces))]
        self.merges = [" ".join(merge) for merge in spec["model"]["merges"]]
        self.meta: dict[str, tuple[str, Any]] = {}
        self.tokenizer = "gpt2"
        self.pre: str | None = "gpt-2"
        self.scores: list[float] | None = None
        self.quant = gguf.GGMLQuantizationType.F32
        self.weights = self.random_weights()

    def random_weights(self) -> dict[str, np.ndarray]:
        """Hugging Face tensors by GGUF name, exact in bf16. Norms are near one."""
        random = np.random.default_rng(0)

        def make(*shape: int) -> np.ndarray:
            values = random.normal(1 if len(shape) == 1 else 0, 0.15, shape).astype(np.float32)
            return (to_bf16(values).astype(np.uint32) << 16).view(np.float32)

        made = {"token_embd.weight": make(len(self.tokens), HIDDEN), "output_norm.weight": make(HIDDEN)}
        for layer in range(LAYERS):
            rows = {"attn_q": HEADS * HEAD_DIM, "attn_k": KV_HEADS * HEAD_DIM, "attn_v": KV_HEADS * HEAD_DIM}
            for name, count in {**rows, "attn_output": HIDDEN, "ffn_gate": INNER, "ffn_up": INNER}.items():
                made[f"blk.{layer}.{name}.weight"] = make(count, HIDDEN)
            made[f"blk.{layer}.ffn_down.weight"] = make(HIDDEN, INNER)
            for name in ("attn_norm", "ffn_norm"):
                made[f"blk.{layer}.{name}.weight"] = make(HIDDEN)
            biased = rows if self.arch == "qwen2" else {**rows, "attn_output": HIDDEN} if self.biases else {}
            for name, count in biased.items():
                made[f"blk.{layer}.{name}.bias"] = make(count)
            if self.arch == "qwen3":
                for name in ("attn_q_norm", "attn_k_norm"):
                    made[f"blk.{layer}.{name}.weight"] = make(HEAD_DIM)
        return made

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.arch)
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(HIDDEN)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(INNER)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_DIM)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(5000.0)
        writer.add_tokenizer_model(self.tokenizer)
        if self.pre is not None:
            writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.tokenizer == "gpt2":
            writer.add_token_merges(self.merges)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        writer.add_eos_token_id(self.tokens.index("<|im_end|>" if "<|im_end|>" in self.tokens else "</s>"))
        writer.add_chat_template(CHATML)
        for key, (kind, value) in self.meta.items():
            getattr(writer, f"add_{kind}")(key, value)
        for name, values in self.weights.items():
            stored = _llama_order(name, values) if self.arch == "llama" else values
            quant = self.quant if values.ndim == 2 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(name, gguf.quantize(stored, quant), raw_dtype=quant)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _llama_order(name: str, values: np.ndarray) -> np.ndarray:
    """What llama.cpp's converter does to the Q and K of Llama models."""
    if ".attn_q." not in name and ".attn_k." not in name:
        return values
    heads = HEADS if ".attn_q." in name else KV_HEADS
    return values.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(values.shape)
