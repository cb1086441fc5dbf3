"""Log probabilities of prompts over HTTP: SGLang's /generate, and `echo` of /v1/completions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from actors.engine.scoring import MAX_NUMBERS
from actors.ingress.native_answers import Scores
from actors.ingress.voice import INLINE_NUMBERS
from actors.runner.toy import TOY_VOCAB_SIZE, toy_continuation, toy_prompt_scores
from tests.ingress.asgi import Client, run
from tests.ingress.local import cluster

TEXT = "to be or not to be"
GREEDY: dict[str, Any] = {"temperature": 0, "max_new_tokens": 6}
NONE: dict[str, Any] = {"temperature": 0, "max_new_tokens": 0}


def listed(text: str, begin: int, *, texts: bool = False) -> list[list[Any]]:
    """What SGLang lists of a prompt's own tokens."""
    scores = toy_prompt_scores(list(text.encode()), begin)
    return [[None if known is None else known[0], token, chr(token) if texts else None] for token, known in scores]


async def generate(client: Client, text: Any = TEXT, **fields: Any) -> Any:
    body = {"text": text, "sampling_params": GREEDY, "return_logprob": True, **fields}
    call = await client.post("/generate", body)
    assert call.status == 200, call.body
    return call.json()


@pytest.mark.parametrize("begin", [0, 1, 5, len(TEXT) - 1, len(TEXT)])
def test_a_prompts_tokens_are_listed_from_there_on(tmp_path: Path, begin: int) -> None:
    """E5: as many as SGLang tells; the first token of all has none."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            asked = {"logprob_start_len": begin, "top_logprobs_num": 2, "token_ids_logprob": [7, 9]}
            meta = (await generate(at.client, **asked, return_text_in_logprobs=True))["meta_info"]
            again = (await generate(at.client, logprob_start_len=begin))["meta_info"]
        assert meta["prompt_tokens"] == len(TEXT)
        assert meta["input_token_logprobs"] == listed(TEXT, begin, texts=True)
        assert again["input_token_logprobs"] == listed(TEXT, begin)
        assert "input_token_ids_logprobs" not in again
        scores = toy_prompt_scores(list(TEXT.encode()), begin, 2, (7, 9))
        for (_, known), top, named in zip(
            scores, meta["input_top_logprobs"], meta["input_token_ids_logprobs"], strict=True
        ):
            if known is None:
                assert (top, named) == (None, None)
                continue
            told = [(token, value) for value, token, _ in (*top, *named)]
            assert tuple(told) == known[1]
        assert [[token for _, token, _ in one] for one in meta["output_token_ids_logprobs"]] == [[7, 9]] * 6
        assert [len(one) for one in meta["output_top_logprobs"]] == [2] * 6

    run(check())


def test_by_default_a_reply_is_told_of_and_where_there_is_none_the_prompt(tmp_path: Path) -> None:
    async def check() -> None:
        async with cluster(tmp_path) as at:
            replied = (await generate(at.client))["meta_info"]
            none = (await generate(at.client, sampling_params=NONE))["meta_info"]
            plain = (await generate(at.client, return_logprob=False))["meta_info"]
        assert (replied["input_token_logprobs"], len(replied["output_token_logprobs"])) == ([], 6)
        assert (none["input_token_logprobs"], none["output_token_logprobs"]) == (listed(TEXT, 0), [])
        assert none["finish_reason"] == {"type": "length", "length": 0}
        assert "input_token_logprobs" not in plain

    run(check())


def test_each_prompt_of_a_batch_has_its_own_beginning(tmp_path: Path) -> None:
    async def check() -> None:
        async with cluster(tmp_path) as at:
            told = await generate(
                at.client, ["one", "three"], logprob_start_len=[1, 3], token_ids_logprob=[[5], None], top_logprobs_num=1
            )
        metas = [one["meta_info"] for one in told]
        assert [meta["input_token_logprobs"] for meta in metas] == [listed("one", 1), listed("three", 3)]
        assert ["input_token_ids_logprobs" in meta for meta in metas] == [True, False]

    run(check())


@pytest.mark.parametrize("begin", [0, 4])
def test_a_stream_tells_of_the_prompt_at_its_beginning_and_end(tmp_path: Path, begin: int) -> None:
    """I2: the last event is the whole answer, and none of it is sent over and over."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.03) as at:
            call = at.client.start(
                "POST",
                "/generate",
                {
                    "text": TEXT,
                    "sampling_params": GREEDY,
                    "return_logprob": True,
                    "logprob_start_len": begin,
                    "stream": True,
                },
            )
            await call.whole()
        told = [event["meta_info"]["input_token_logprobs"] for event in call.events[:-1]]
        assert len(told) > 2
        assert told[0] == told[-1] == listed(TEXT, begin)
        assert all(one == [] for one in told[1:-1])

    run(check())


def test_a_turn_is_scored_on_the_restored_prompt(tmp_path: Path) -> None:
    """S1: session case N18: positions count from the beginning of the history; beyond it is 400, and the session is
    unharmed."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            await at.client.post("/open_session", {"session_id": "s", "capacity_of_str_len": 1000})
            first = await generate(at.client, session_params={"id": "s"}, rid="r1")
            whole = TEXT + first["text"] + " and?"
            beyond = {"session_params": {"id": "s", "rid": "r1"}, "logprob_start_len": len(whole) + 1}
            body = {"text": " and?", "sampling_params": GREEDY, "return_logprob": True, **beyond}
            refused = await at.client.post("/generate", body)
            assert (refused.status, refused.json()["error"]["param"]) == (400, "logprob_start_len")
            told = await generate(at.client, " and?", session_params={"id": "s", "rid": "r1"}, logprob_start_len=3)
        assert told["meta_info"]["input_token_logprobs"] == listed(whole, 3)
        assert told["text"] == bytes(toy_continuation(list(whole.encode()), 6)).decode()

    run(check())


def test_more_than_can_be_told_at_once_are_refused(tmp_path: Path) -> None:
    """I1, S10: all prompts of a batch together, before any is computed."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            most = MAX_NUMBERS // (21 * 100)
            body = {"text": ["x" * 100] * (most + 1), "sampling_params": NONE, "return_logprob": True}
            refused = await at.client.post("/generate", {**body, "top_logprobs_num": 20})
            assert (refused.status, refused.json()["error"]["param"]) == (400, "logprob_start_len")
            assert at.shell().stats()["prefill_tokens"] == 0

    run(check())


def select(scores: list[list[Any]]) -> float:
    """As SGLang's frontend normalizes them."""
    values = [one[0] for one in scores if one[0]]
    return sum(values) / len(values)


def test_the_requests_of_sglangs_select(tmp_path: Path) -> None:
    """`gen` with `choices`: the prefix is cached, each choice is scored behind it, from two tokens before."""

    async def check() -> None:
        choices = [" yes", " no", " maybe so"]
        async with cluster(tmp_path) as at:
            prefix = (
                await at.client.post("/generate", {"text": TEXT, "sampling_params": {"max_new_tokens": 0}})
            ).json()
            begin = max(prefix["meta_info"]["prompt_tokens"] - 2, 0)
            body = {
                "text": [TEXT + choice for choice in choices],
                "sampling_params": NONE,
                "return_logprob": True,
                "return_text_in_logprobs": True,
                "logprob_start_len": begin,
            }
            told = (await at.client.post("/generate", body)).json()
            ids = [[one[1] for one in each["meta_info"]["input_token_logprobs"]] for each in told]
            again = {"input_ids": ids, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
            bare = (await at.client.post("/generate", again)).json()
        scores = [one["meta_info"]["input_token_logprobs"] for one in told]
        assert scores == [listed(TEXT + choice, begin, texts=True) for choice in choices]
        assert ["".join(one[2] for one in each) for each in scores] == [TEXT[begin:] + choice for choice in choices]
        assert all(one[0] is not None for each in scores for one in each)
        assert [one["meta_info"]["output_token_logprobs"] for one in told] == [[]] * 3
        assert len({select(each) for each in scores}) == 3
        for each, unconditional in zip(scores, bare, strict=True):
            told_bare = unconditional["meta_info"]["input_token_logprobs"]
            assert [one[1] for one in told_bare] == [one[1] for one in each]
            assert [one[0] is None for one in told_bare] == [True] + [False] * (len(each) - 1)

    run(check())


@pytest.mark.parametrize("max_tokens", [0, 5])
@pytest.mark.parametrize("prompt", ["héllo", list(b"ids")])
def test_an_echoed_prompt_has_its_own(tmp_path: Path, max_tokens: int, prompt: Any) -> None:
    """I2: the first token null, as the OpenAI API has it; a stream's are those of the whole answer."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            asked = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": max_tokens, "temperature": 0}
            whole = (await at.client.post("/v1/completions", asked)).json()["choices"][0]
            call = await at.client.post("/v1/completions", {**asked, "stream": True})
        ids = prompt if isinstance(prompt, list) else list(prompt.encode())
        told, scores = whole["logprobs"], toy_prompt_scores(ids, 0, 2)
        assert len(told["tokens"]) == len(ids) + max_tokens
        assert told["token_logprobs"][: len(ids)] == [None if known is None else known[0] for _, known in scores]
        assert told["top_logprobs"][0] is None
        assert all(len(one) == 2 for one in told["top_logprobs"][1:])
        assert told["text_offset"] == list(range(len(ids) + max_tokens))
        chunks = [event["choices"][0]["logprobs"] for event in call.events[:-1] if event["choices"]]
        for kind in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            assert [item for chunk in chunks if chunk for item in chunk[kind]] == told[kind]

    run(check())


def test_an_echo_that_is_too_long_to_tell_names_the_field(tmp_path: Path) -> None:
    async def check() -> None:
        async with cluster(tmp_path) as at:
            asked = {"prompt": ["x" * 1000] * 7, "echo": True, "logprobs": 20, "max_tokens": 0}
            call = await at.client.post("/v1/completions", asked)
        assert (call.status, call.json()["error"]["param"]) == (400, "logprobs")

    run(check())


def test_a_token_that_is_none_is_refused(tmp_path: Path) -> None:
    async def check() -> None:
        async with cluster(tmp_path) as at:
            body = {"text": TEXT, "return_logprob": True, "token_ids_logprob": [TOY_VOCAB_SIZE]}
            call = await at.client.post("/generate", body)
        assert (call.status, call.json()["error"]["param"]) == (400, "token_ids_logprob[0]")

    run(check())


def test_a_long_prompt_is_told_without_standing_in_the_way(tmp_path: Path) -> None:
    """I1: what takes long to write is not written on the event loop."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            text = TEXT * 300
            told = await generate(at.client, text, logprob_start_len=0, sampling_params=NONE)
        assert told["meta_info"]["input_token_logprobs"] == listed(text, 0)

    run(check())


@pytest.mark.parametrize(("begin", "top", "stream"), [(-1, 20, False), (0, 20, False), (0, 20, True), (0, 0, True)])
def test_many_numbers_are_not_written_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: int, top: int, stream: bool
) -> None:
    """I1: neither those of a prompt nor those of a reply, in a stream or at once; the numbers count, not the tokens."""
    written: list[tuple[int, bool]] = []
    listed_by = Scores.of_prompt if begin == 0 else Scores.of

    def noted(scores: Scores, told: Sequence[Any], named: int = 0) -> Any:
        written.append((len(told), threading.current_thread() is threading.main_thread()))
        return listed_by(scores, told, named)

    monkeypatch.setattr(Scores, listed_by.__name__, noted)

    async def check() -> None:
        async with cluster(tmp_path) as at:
            sampling = {**GREEDY, "max_new_tokens": 6 if begin == 0 else 400}
            asked = {"return_logprob": True, "logprob_start_len": begin, "top_logprobs_num": top, "stream": stream}
            call = at.client.start("POST", "/generate", {"text": TEXT * 30, "sampling_params": sampling, **asked})
            await call.whole()
            assert call.status == 200

    run(check())
    long = [on_loop for tokens, on_loop in written if tokens * (1 + top) > INLINE_NUMBERS]
    assert not any(long)
    assert bool(long) == (top > 0)
