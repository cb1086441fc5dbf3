"""Responses of a real model: its own chat template, its own vocabulary."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from actors.ingress.load_text import load_text_model
from actors.model.source import resolve
from actors.model.tokenizer import Tokenizer
from actors.runner.torch.runner import TorchRunner
from configs import EngineConfig, RemoraConfig
from tests.ingress.asgi import run
from tests.ingress.responses.calls import text_of
from tests.ingress.responses.test_responses import asking

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


def real() -> TorchRunner:
    folder = resolve("default", "", progress=False)
    tokenizer = Tokenizer.load(folder)
    return TorchRunner(
        folder.path,
        dtype="float32",
        kv_tokens=2048,
        vocab_bytes=tokenizer.vocab_bytes(),
        eos_ids=tokenizer.eos_ids,
    )


def test_a_chain_recalls_and_takes_other_instructions_behind_it(tmp_path: Path) -> None:
    """S1, K1: this template has a place for a system message in the middle: only that and the question are new."""

    async def check() -> None:
        config = replace(RemoraConfig(), engine=EngineConfig(kv_tokens=2048))
        text, engine = load_text_model(config), EngineConfig(kv_tokens=2048, check_invariants=True)
        async with asking(tmp_path, runner=real, text=text, engine=engine) as (_, api):
            first = await api.ask(
                "The code word is heron. Please remember it.", instructions="You are a patient helper."
            )
            second = await api.ask(
                "What is the code word?",
                previous_response_id=first["id"],
                instructions="Answer in one short sentence.",
                max_output_tokens=24,
                stream=True,
            )
            assert "heron" in text_of(second).lower()
            assert second["instructions"] == "Answer in one short sentence."
            total = first["usage"]["total_tokens"]
            assert second["usage"]["input_tokens_details"]["cached_tokens"] in (total, total - 1)
            assert second["usage"]["input_tokens"] > total
            alone = await api.ask("What is the code word?", max_output_tokens=24)
            assert "heron" not in text_of(alone).lower()
            assert (await api.get(second["id"])).json() == second

    run(check(), 120.0)
