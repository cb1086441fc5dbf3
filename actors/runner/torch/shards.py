"""Which part of a model each rank of a tensor parallel worker holds (Shoeybi et al. 2019, Megatron-LM).

What makes heads and the MLP's inner width is split by rows: each rank computes its own from the whole hidden state.
What leads back to the hidden state (o, down) is split by columns: each rank's product is a part of the sum, so the
ranks add theirs up, and the bias is the first rank's alone. Norms are each rank's own, those of heads too.

The input embedding is whole everywhere: looking a token up costs nothing, and on one machine its memory is the page
cache's, which the ranks share. The output projection is split by rows of the vocabulary, since it is a fair part of a
small model's work; only the first rank needs the logits, so they are gathered there.
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.model.card import ModelCard
from actors.model.errors import ModelUnusable

WHOLE = slice(None)


@dataclass(frozen=True, slots=True)
class Shard:
    """One rank's part. `heads`, `kv_heads`, `mlp` and `vocab` say which of the model's query heads, KV heads, inner
    columns and vocabulary rows it holds."""

    rank: int
    size: int
    heads: slice
    kv_heads: slice
    mlp: slice
    vocab: slice

    @property
    def num_heads(self) -> int:
        return length(self.heads)

    @property
    def num_kv_heads(self) -> int:
        return length(self.kv_heads)


def shard_of(card: ModelCard, rank: int = 0, size: int = 1) -> Shard:
    """Rank `rank` of `size`. With more ranks than KV heads, several hold the same one.

    Raises ModelUnusable when the heads cannot be dealt out evenly: the ranks work in lockstep, so the largest part
    would set the pace, and each rank's query heads need their KV heads with them.
    """
    if card.num_heads % size:
        raise ModelUnusable(f"{card.num_heads} attention heads cannot be split over {size} ranks evenly")
    if card.num_kv_heads % size and size % card.num_kv_heads:
        raise ModelUnusable(f"{card.num_kv_heads} KV heads cannot be split over {size} ranks evenly, nor repeated")
    first_kv_head = card.num_kv_heads * rank // size
    return Shard(
        rank=rank,
        size=size,
        heads=part_of(card.num_heads, rank, size),
        kv_heads=slice(first_kv_head, first_kv_head + max(1, card.num_kv_heads // size)),
        mlp=part_of(card.intermediate_size, rank, size),
        vocab=part_of(card.vocab_size, rank, size),
    )


def part_of(total: int, rank: int, size: int) -> slice:
    """Rank's share of `total` in order of rank; shares differ by one at most."""
    return slice(total * rank // size, total * (rank + 1) // size)


def length(part: slice) -> int:
    """Of a slice with both ends."""
    return int(part.stop - part.start)


def times(part: slice, width: int) -> slice:
    """The rows of heads, each of `width` rows."""
    return slice(part.start * width, part.stop * width)
