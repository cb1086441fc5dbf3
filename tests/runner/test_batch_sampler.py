"""Drawing for all rows at once, as a GPU does it, gives what drawing row by row gives."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from actors.messages import SamplingParams
from actors.runner.torch.batch_sampler import draw_many
from actors.runner.torch.sampler import draw

SETTINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.01, 0.5, 1.0, 1.7, 50.0]),
    top_k=st.sampled_from([0, 0, 1, 2, 7, 50, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.01, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5]),
)
NUMBERS = st.floats(0.0, 1.0, exclude_max=True)


@given(rows=st.lists(st.tuples(SETTINGS, NUMBERS), min_size=1, max_size=6), seed=st.integers(0, 10_000))
def test_a_batch_draws_what_each_row_would_alone(rows: list[tuple[SamplingParams, float]], seed: int) -> None:
    """I3: the batch changes nothing; settings of every kind side by side, ties and tokens that are switched off too."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(rows), 97, generator=generator) * 4
    logits[:, 5] = logits[:, 50]
    logits[:, 60:70] = float("-inf")
    alone = [draw(logits[index].clone(), sampling, number) for index, (sampling, number) in enumerate(rows)]
    together = draw_many(logits, [sampling for sampling, _ in rows], [number for _, number in rows])
    assert together.tolist() == alone


def test_the_numbers_ends_are_tokens() -> None:
    """The least number draws the likeliest under top-p; the greatest never leaves what may be drawn."""
    logits = torch.full((2, 9), float("-inf"))
    logits[:, 3], logits[:, 4] = 2.0, 1.0
    nucleus = SamplingParams(temperature=1.0, top_p=0.99)
    assert draw_many(logits, [nucleus, nucleus], [0.0, 1.0 - 2**-53]).tolist() == [3, 4]
    plain = SamplingParams(temperature=1.0)
    assert draw_many(logits, [plain, plain], [0.0, 1.0 - 2**-53]).tolist() == [3, 4]


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([0.1, 0.2, 0.7]).log().repeat(2000, 1)
    numbers = [(index + 0.5) / 2000 for index in range(2000)]
    counts = draw_many(logits, [SamplingParams(temperature=1.0)] * 2000, numbers).bincount(minlength=3)
    assert [round(count / 20) for count in counts.tolist()] == [10, 20, 70]
