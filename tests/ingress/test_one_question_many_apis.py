"""The same question by every API, whole and streamed, with and without a session: one answer (rules I2, I3, E5, S1).

Answers are compared with each other; that the toy model says what it should is for other tests.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.ingress.load_text import load_text_model
from actors.model.source import resolve
from actors.model.tokenizer import Tokenizer
from actors.runner.torch.runner import TorchRunner
from configs import EngineConfig, ModelConfig, RemoraConfig
from tests.ingress.asgi import Client
from tests.ingress.dialects import ALL, Asked, Chat, Completion, Dialect, Messages, Native, Responses, Told
from tests.ingress.web import Web, serving

T = TypeVar("T")

CHAT, MESSAGE, RESPONSE, NATIVE, COMPLETION = Chat(), Messages(), Responses(), Native(as_ids=True), Completion(True)
LIMIT_S = 120.0
fresh = (f"n{number}" for number in itertools.count())
"""Names that nobody has used."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    with serving(tmp_path_factory.mktemp("toy"), workers=2) as web:
        yield web


def on_loop(web: Web, work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, web.loop).result(LIMIT_S)


async def put(client: Client, text: str, **fields: Any) -> Asked:
    """A question, with the prompt that the chat template makes of it."""
    call = await client.post("/tokenize", {"messages": [{"role": "user", "content": text}], "return_token_strs": True})
    assert call.status == 200, call.body
    return Asked(text, tuple(call.json()["tokens"]), **fields)


async def reply_ids(client: Client, asked: Asked) -> list[int]:
    """What is generated, the end's tokens included."""
    call = await NATIVE.call(client, asked, stream=False, cache_salt=next(fresh))
    ids: list[int] = call.json()["output_ids"]
    return ids


async def first_answers(client: Client, asked: Asked, dialects: dict[str, Dialect]) -> dict[str, Told]:
    """By every API, whole and streamed, each with a cache of its own."""
    names = [(name, stream) for name in dialects for stream in (False, True)]
    answers = await asyncio.gather(
        *(dialects[name].ask(client, asked, stream=stream, cache_salt=next(fresh)) for name, stream in names)
    )
    return {
        f"{name}, {'streamed' if stream else 'whole'}": told
        for (name, stream), told in zip(names, answers, strict=True)
    }


class Conversation:
    """Two turns of one API that keeps history. `stream`: how both are asked."""

    def __init__(self, dialect: Dialect, client: Client, *, stream: bool) -> None:
        self.dialect, self.client, self.stream = dialect, client, stream
        self.name = next(fresh)

    async def begin(self, asked: Asked) -> Told:
        return await self._ask(asked, session={"id": self.name, "create": True})

    async def go_on(self, asked: Asked) -> Told:
        return await self._ask(asked, session={"id": self.name})

    async def _ask(self, asked: Asked, **fields: Any) -> Told:
        return await self.dialect.ask(self.client, asked, stream=self.stream, **fields)


class Appended(Conversation):
    """Of an append-only session."""

    async def begin(self, asked: Asked) -> Told:
        return await self._ask(asked, session={"id": self.name, "create": True, "mode": "streaming"})


class SglangSession(Conversation):
    async def begin(self, asked: Asked) -> Told:
        opened = await self.client.post("/open_session", {"capacity_of_str_len": 1000, "session_id": self.name})
        assert opened.status == 200, opened.body
        return await self._ask(asked, rid=f"{self.name}-1", session_params={"id": self.name, "rid": None})

    async def go_on(self, asked: Asked) -> Told:
        return await self._ask(asked, session_params={"id": self.name, "rid": f"{self.name}-1"})


class Chain(Conversation):
    """By `previous_response_id`."""

    async def begin(self, asked: Asked) -> Told:
        call = await self.dialect.call(self.client, asked, stream=self.stream)
        self.name = call.events[-1]["response"]["id"] if self.stream else call.json()["id"]
        return self.dialect.streamed(call.events) if self.stream else self.dialect.whole(call.json())

    async def go_on(self, asked: Asked) -> Told:
        return await self._ask(asked, previous_response_id=self.name)


class Kept(Conversation):
    """In a conversation of /v1/conversations."""

    async def begin(self, asked: Asked) -> Told:
        self.name = (await self.client.post("/v1/conversations", {})).json()["id"]
        return await self.go_on(asked)

    async def go_on(self, asked: Asked) -> Told:
        return await self._ask(asked, conversation=self.name)


def conversations(client: Client) -> dict[str, Conversation]:
    kinds: list[tuple[str, type[Conversation], Dialect]] = [
        ("chat", Conversation, CHAT),
        ("chat, append-only", Appended, CHAT),
        ("message", Conversation, MESSAGE),
        ("completion", Conversation, COMPLETION),
        ("native", Conversation, NATIVE),
        ("native, as SGLang", SglangSession, NATIVE),
        ("response", Chain, RESPONSE),
        ("conversation", Kept, RESPONSE),
    ]
    return {
        f"{name}, {'streamed' if stream else 'whole'}": kind(dialect, client, stream=stream)
        for name, kind, dialect in kinds
        for stream in (False, True)
    }


async def second_turns(client: Client, first: Asked, second: Asked, appended: list[int]) -> tuple[Any, Any, Told]:
    """(first answers, second answers, the second one to the whole context without a session). `appended`: what goes
    behind the first reply, in ids."""
    reply = await reply_ids(client, first)
    talks = conversations(client)
    begun = dict(zip(talks, await asyncio.gather(*(talk.begin(first) for talk in talks.values())), strict=True))
    in_ids = replace(second, ids=tuple(appended))
    gone_on = dict(zip(talks, await asyncio.gather(*(talk.go_on(in_ids) for talk in talks.values())), strict=True))
    context = (*first.ids, *reply, *appended)
    alone = await NATIVE.ask(client, replace(second, ids=context), stream=False, cache_salt=next(fresh))
    length = len(first.ids) + len(reply)
    assert {
        name: told.cached_tokens for name, told in gone_on.items() if told.cached_tokens not in (length, length - 1)
    } == {}
    return begun, gone_on, alone


def all_the_same(answers: dict[str, Told], *, cached: bool = False) -> Told:
    """The answer that all are. `cached`: what came from the cache is compared, too."""
    alike = {name: told if cached else replace(told, cached_tokens=0) for name, told in answers.items()}
    one = next(iter(alike.values()))
    assert {name: told for name, told in alike.items() if told != one} == {}, one
    return one


def cut(asked: Asked, reply: list[int], kind: str, at: int) -> Asked:
    """Ended by something that the reply says; or not."""
    if kind == "none" or not reply:
        return asked
    at %= len(reply)
    if kind == "token":
        return replace(asked, stop_token=reply[at])
    return replace(asked, stop=bytes(reply[at : at + 2]).decode())


words = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
questions = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(1, 10),
        "temperature": st.sampled_from([0.0, 0.0, 0.7, 1.6]),
        "seed": st.integers(0, 2**31 - 1),
    }
)
ends = st.tuples(st.sampled_from(["none", "string", "token"]), st.integers(0, 9))


@given(text=words, fields=questions, end=ends)
@settings(max_examples=20, deadline=None)
def test_one_question_has_one_answer(toy: Web, text: str, fields: dict[str, Any], end: tuple[str, int]) -> None:
    """I2, I3, E5: text, figures and finish, greedy or drawn with a seed, ended by a string, a token, or its length."""

    async def check() -> None:
        client = toy.at.client
        asked = await put(client, text, **fields)
        asked = replace(asked, prompt=bytes(asked.ids).decode())
        reply = await reply_ids(client, asked)
        asked = cut(asked, reply, *end)
        answers = await first_answers(client, asked, ALL)
        one = all_the_same(answers, cached=True)
        assert one.finish == ("length" if end[0] == "none" else "stop")
        assert (one.prompt_tokens, one.cached_tokens) == (len(asked.ids), 0)

    on_loop(toy, check())


@given(texts=st.tuples(words, words), fields=questions, end=ends)
@settings(max_examples=8, deadline=None)
def test_a_conversation_is_the_same_by_every_api(
    toy: Web, texts: tuple[str, str], fields: dict[str, Any], end: tuple[str, int]
) -> None:
    """S1, K1, E5, S4: the second answer is that to the whole context in ids, and all of the first turn is cached."""

    async def check() -> None:
        client = toy.at.client
        first = await put(client, texts[0], **fields)
        first = cut(first, await reply_ids(client, first), *end)
        second = await put(client, texts[1], **{**fields, "max_tokens": 4})
        begun, gone_on, alone = await second_turns(client, first, second, [*b"\n", *second.ids])
        all_the_same(begun)
        all_the_same({**gone_on, "without a session": alone})

    on_loop(toy, check())


# -- a real model ----------------------------------------------------------------------------------------------------


def real() -> TorchRunner:
    folder = resolve("default", "", progress=False)
    tokenizer = Tokenizer.load(folder)
    return TorchRunner(
        folder.path,
        dtype="float32",
        kv_tokens=8192,
        vocab_bytes=tokenizer.vocab_bytes(),
        eos_ids=tokenizer.eos_ids,
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    engine = EngineConfig(kv_tokens=8192, check_invariants=True)
    text = load_text_model(replace(RemoraConfig(), engine=engine, model=ModelConfig(dtype="float32")))
    with serving(tmp_path_factory.mktemp("model"), runner=real, text=text, engine=engine) as web:
        yield web


@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fields", [{"temperature": 0.0, "stop": "."}, {"temperature": 0.9, "seed": 7}])
def test_a_real_model_answers_alike(model: Web, fields: dict[str, Any]) -> None:
    """I2, I3, E5, S1: its own template and vocabulary; control tokens are ids, so no text of the prompt will do."""

    async def check() -> None:
        client = model.at.client
        asked = await put(client, "Name a colour, please.", max_tokens=12, **fields)
        by_ids = {name: dialect for name, dialect in ALL.items() if not name.endswith("text")}
        all_the_same(await first_answers(client, asked, by_ids), cached=True)
        plain = replace(asked, prompt="Once upon a time", ids=())
        by_text = {name: dialect for name, dialect in ALL.items() if name.endswith("text")}
        all_the_same(await first_answers(client, plain, by_text), cached=True)

    on_loop(model, check())


@pytest.mark.model
@pytest.mark.timeout(300)
def test_a_real_model_converses_alike(model: Web) -> None:
    """S1, K1, E5: by every API that has messages; all of the first turn is cached."""

    async def check() -> None:
        client = model.at.client
        first = await put(client, "Name a colour, please.", max_tokens=6)
        second = await put(client, "Another one.", max_tokens=6)
        talks = {
            name: talk for name, talk in conversations(client).items() if talk.dialect in (CHAT, MESSAGE, RESPONSE)
        }
        begun = await asyncio.gather(*(talk.begin(first) for talk in talks.values()))
        gone_on = await asyncio.gather(*(talk.go_on(second) for talk in talks.values()))
        one = all_the_same(dict(zip(talks, begun, strict=True)))
        all_the_same(dict(zip(talks, gone_on, strict=True)))
        total = one.prompt_tokens + one.completion_tokens
        assert {told.cached_tokens for told in gone_on} <= {total, total - 1}

    on_loop(model, check())
