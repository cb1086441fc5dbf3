"""Prompts of random words, so that no prefix cache can answer, of about as many tokens as wanted."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.bench.client import ChatClient, Message

# Common words: one token each, the space before included, in most byte-level BPE vocabularies.
COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body "
    "information back parent face others level office door health person art war history party result change morning "
    "reason research girl guy moment air teacher force education"
)
WORDS = tuple(COMMON.split())
PROBE_WORDS = (40, 360)
OPENING_WORDS = 12


def random_words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def fresh_prompt(rng: random.Random, words: int) -> list[Message]:
    """A conversation that differs from every other from its first message on: a system message of its own keeps a
    model's default one, the same for all, from being found in the cache."""
    return [
        {"role": "system", "content": random_words(rng, OPENING_WORDS)},
        {"role": "user", "content": random_words(rng, words)},
    ]


@dataclass(frozen=True, slots=True)
class Sizing:
    """How the server's tokenizer and template count: a `fresh_prompt` of n words has about
    `overhead + n * tokens_per_word` tokens."""

    tokens_per_word: float
    overhead: float

    def words_of(self, tokens: int) -> int:
        """Words of a text of so many tokens, template not counted."""
        return max(1, round(tokens / self.tokens_per_word))

    def words_of_prompt(self, tokens: int) -> int:
        """Words of a `fresh_prompt` that has so many tokens in all."""
        return max(1, round((tokens - self.overhead) / self.tokens_per_word))


async def calibrate(client: ChatClient, rng: random.Random) -> Sizing:
    """Ask the server for the sizes of a short and a long prompt. Warms it up, too."""
    short, long = PROBE_WORDS
    sizes = [(await client.chat(fresh_prompt(rng, words), 1)).prompt_tokens for words in PROBE_WORDS]
    per_word = (sizes[1] - sizes[0]) / (long - short)
    return Sizing(tokens_per_word=per_word, overhead=sizes[0] - short * per_word)
