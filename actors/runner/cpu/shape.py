"""A model's sizes as the fused operator takes them."""

from __future__ import annotations

from actors.runner.torch.rope import frequencies
from actors.runner.torch.setup import ModelSetup
from kernels.cpu.decoder import DecoderShape


def shape_of(setup: ModelSetup, num_pages: int | None = None) -> DecoderShape:
    """With another number of KV pages than the setup's, if one is given."""
    card = setup.card
    return DecoderShape(
        hidden=card.hidden_size,
        inner=card.intermediate_size,
        layers=card.num_layers,
        heads=card.num_heads,
        kv_heads=card.num_kv_heads,
        head_dim=card.head_dim,
        vocab=card.vocab_size,
        page_size=setup.page_size,
        num_pages=setup.num_pages if num_pages is None else num_pages,
        norm_eps=card.norm_eps,
        score_scale=card.head_dim**-0.5,
        rope_factor=frequencies(card.rope, card.head_dim)[1],
    )
