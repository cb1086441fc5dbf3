"""Constrained sampling by the torch runner: whatever the batch, memory, overlap and randomness, the output conforms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.messages import Grammar, GrammarKind, Outcome, Reason, SamplingParams
from actors.model.source import resolve
from actors.model.tokenizer import Tokenizer
from actors.runner.torch.runner import TorchRunner
from tests.engine.driver import Driver, Told
from tests.runner import tiny

Saved = Callable[[str], tuple[Path, Any]]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
        "done": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "done"],
    "additionalProperties": False,
}
JSON = Grammar(kind=GrammarKind.JSON_SCHEMA, text=json.dumps(SCHEMA))
CHOICE = Grammar(kind=GrammarKind.CHOICE, text='["yes", "no", "per\\"haps"]')
REGEX = Grammar(kind=GrammarKind.REGEX, text=r"[0-9]{4}-[0-9]{2}")
EBNF = Grammar(kind=GrammarKind.EBNF, text='root ::= "a" | "(" root ")"')
VOCAB_BYTES = tuple(bytes([token]) if token > 2 else b"" for token in range(tiny.VOCAB))


def runner(saved: Saved, **fields: Any) -> TorchRunner:
    return tiny.runner(saved("llama")[0], vocab_bytes=VOCAB_BYTES, **fields)


def sampled(seed: int, max_tokens: int = 200, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 1.0, "seed": seed, **fields})


def text(told: Told, vocab_bytes: tuple[bytes, ...] = VOCAB_BYTES) -> str:
    assert told.end is not None
    assert told.end.outcome is Outcome.STOP, told.end
    return b"".join(vocab_bytes[token] for token in told.ids).decode()


def conforms(answer: str) -> bool:
    value = json.loads(answer)
    assert list(value) == ["name", "age", "tags", "done"]
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 12
    assert type(value["age"]) is int
    assert 0 <= value["age"] <= 150
    assert len(value["tags"]) <= 4
    assert set(value["tags"]) <= {"red", "green", "blue"}
    assert isinstance(value["done"], bool)
    return True


@pytest.mark.parametrize("depth", [0, 1])
def test_json_is_valid_under_chunks_overlap_and_preemption(saved: Saved, depth: int) -> None:
    """I3, K4: and the same as alone, beside unconstrained requests that are not touched."""
    prompts = [tiny.prompt(20 + n, seed=n) for n in range(6)]
    alone: list[list[int]] = []
    for n, prompt in enumerate(prompts):
        driver = Driver(runner(saved), max_step_tokens=64)
        told = driver.submit("x", prompt, sampling=sampled(n), grammar=JSON)
        driver.run()
        alone.append(told.ids)
    tight = Driver(runner(saved, kv_tokens=256), max_step_tokens=11, depth=depth)
    answers = [tight.submit(f"j{n}", prompt, sampling=sampled(n), grammar=JSON) for n, prompt in enumerate(prompts)]
    plain = tight.submit("p", tiny.prompt(9), sampling=tiny.greedy(40))
    tight.run(steps=20_000)
    assert tight.engine.snapshot().preemptions
    assert [answer.ids for answer in answers] == alone
    assert all(conforms(text(answer)) for answer in answers)
    tiny.assert_greedy(saved("llama")[1], tiny.prompt(9), plain.ids)
    assert tight.grammars.open_uids == set()


@pytest.mark.parametrize("depth", [0, 1])
def test_every_kind_of_grammar_is_obeyed(saved: Saved, depth: int) -> None:
    driver = Driver(runner(saved), depth=depth)
    told = {
        (grammar.kind, seed): driver.submit(
            f"{grammar.kind}{seed}", tiny.prompt(8), sampling=sampled(seed), grammar=grammar
        )
        for grammar in (CHOICE, REGEX, EBNF)
        for seed in range(4)
    }
    driver.run(steps=20_000)
    for (kind, _), answer in told.items():
        if kind is GrammarKind.CHOICE:
            assert text(answer) in ("yes", "no", 'per"haps')
        elif kind is GrammarKind.REGEX:
            assert re.fullmatch(REGEX.text, text(answer))
        else:
            assert re.fullmatch(r"\(*a\)*", text(answer))
            assert text(answer).count("(") == text(answer).count(")")


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": ((ord("z"), 100.0),)},
        {"repetition_penalty": 0.5, "presence_penalty": -2.0, "frequency_penalty": -2.0},
        {"temperature": 2.0, "top_k": 1},
        {"temperature": 0.0},
        {"top_p": 0.01, "min_p": 0.9},
    ],
    ids=["bias", "penalties", "top-k", "greedy", "nucleus"],
)
def test_no_other_setting_brings_a_forbidden_token_back(saved: Saved, fields: dict[str, Any]) -> None:
    driver = Driver(runner(saved))
    told = driver.submit("x", tiny.prompt(8), sampling=sampled(1, **fields), grammar=REGEX)
    driver.run()
    assert re.fullmatch(REGEX.text, text(told))


@pytest.mark.parametrize("depth", [0, 1])
def test_a_grammar_that_the_vocabulary_cannot_spell_ends_its_row_alone(saved: Saved, depth: int) -> None:
    """N52, third run: a real dead end. This vocabulary has no byte above 198, with which these characters begin."""
    driver = Driver(runner(saved), depth=depth)
    broken = Grammar(kind=GrammarKind.REGEX, text="ab[\U00100000-\U0010ffff]")
    stuck = driver.submit("s", tiny.prompt(8), sampling=sampled(1), grammar=broken)
    others = [driver.submit(f"r{n}", tiny.prompt(9 + n), sampling=sampled(n), grammar=REGEX) for n in range(3)]
    driver.run()
    assert stuck.end is not None
    assert (stuck.end.outcome, stuck.end.reason) == (Outcome.ABORT, Reason.GRAMMAR_INVALID)
    assert len(stuck.ids) == 2
    assert all(re.fullmatch(REGEX.text, text(other)) for other in others)


def test_a_model_without_text_says_so(saved: Saved) -> None:
    """G02."""
    driver = Driver(tiny.runner(saved("llama")[0]))
    told = driver.submit("x", tiny.prompt(8), grammar=REGEX)
    assert told.end is not None
    assert told.end.reason is Reason.INVALID
    assert "no text" in told.end.message


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model_writes_json_that_conforms() -> None:
    """Temperature 1 with seeds, overlapped steps, a real vocabulary of 49,152 tokens."""
    folder = resolve("default", "", progress=False)
    tokenizer = Tokenizer.load(folder)
    vocab_bytes, eos_ids = tokenizer.vocab_bytes(), tokenizer.eos_ids
    real = TorchRunner(folder.path, dtype="float32", kv_tokens=2048, vocab_bytes=vocab_bytes, eos_ids=eos_ids)
    driver = Driver(real, depth=1, max_step_tokens=64)
    prompt = tokenizer.encode("Describe a person as JSON: ")
    told = [driver.submit(f"j{n}", prompt, sampling=sampled(n, 150), grammar=JSON) for n in range(4)]
    choice = driver.submit("c", prompt, sampling=sampled(9), grammar=CHOICE)
    driver.run(steps=20_000)
    assert all(conforms(text(answer, vocab_bytes)) for answer in told)
    assert text(choice, vocab_bytes) in ("yes", "no", 'per"haps')
    real.close()
