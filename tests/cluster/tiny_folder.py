"""A model's folder as a server wants it: tiny random weights, a tokenizer and a chat template."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from tests.model.conftest import FAMILIES, train_byte_level, write_folder

VOCAB = 448


def save_tiny(folder: Path) -> Path:
    """A Llama with six heads and two KV heads, whose every token is as likely as any at first."""
    family = FAMILIES["chatml"]
    tokenizer = train_byte_level(family["special"], family["plain_added"])
    write_folder(folder, tokenizer.to_str(), family["names"], family["template"])
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        intermediate_size=80,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.token_to_id(family["end"]),
    )
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 0.2)
    model.save_pretrained(folder)
    return folder
