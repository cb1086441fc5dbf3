"""What `quality` tells of two models."""

from __future__ import annotations

import math

import torch

from tests.bench.quality import DOCUMENTS, REPLY, ROOT, Heard, compare, texts


def test_figures_are_of_places_and_replies() -> None:
    plain = Heard(4 * math.log(10.0), torch.tensor([[1, 2], [3, 4]]), [[1] * REPLY, [5] * REPLY])
    other = Heard(4 * math.log(11.0), torch.tensor([[1, 2], [3, 9]]), [[1] * REPLY, [5] * 28 + [6] * (REPLY - 28)])
    figures = compare("a text", plain, other).split()
    assert figures == ["a", "text", "4", "10.000", "11.000", "+10.00%", "75.0%", "78.0", "1", "of", "2"]


def test_texts_are_on_every_machine() -> None:
    assert all((ROOT / name).is_file() for name in DOCUMENTS)
    assert all(len(text) > 20_000 for text in texts().values())
