"""The `anthropic` client as it comes from the registry, against a real HTTP server."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx2
import pytest
from pydantic import BaseModel

from tests.e2e.clients.place import Place, expected
from tests.ingress.keyed import ACME


def client(place: Place, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(**{"base_url": place.url, "api_key": ACME, "max_retries": 0, **options})


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_a_message_and_a_stream_of_it(place: Place) -> None:
    """I2, E5: the text is the toy's own, the usage is right, and the streaming helper gathers the same message."""
    made = client(place)
    ask: Any = {"model": "toy", "max_tokens": 12, "messages": user("hi"), "extra_body": {"temperature": 0}}
    want = expected("system: Be brief.\nuser: hi\nassistant: ", 12)
    message = made.messages.create(system="Be brief.", **ask)
    assert [block.text for block in message.content if block.type == "text"] == [want]
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 12)
    assert message._request_id
    counted = made.messages.count_tokens(model="toy", system="Be brief.", messages=user("hi"))
    assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    with made.messages.stream(system=[{"type": "text", "text": "Be brief."}], **ask) as stream:
        assert "".join(stream.text_stream) == want
        final = stream.get_final_message()
    assert final.content[0].model_dump() == message.content[0].model_dump()
    assert final.stop_reason == message.stop_reason
    assert final.usage.output_tokens == 12
    events = [event.type for event in made.messages.create(stream=True, **ask)]
    assert (events[0], events[-1]) == ("message_start", "message_stop")


def test_a_conversation_with_a_stop_and_a_retry(place: Place) -> None:
    """P4, E1: the client sends everything each time, and its prefix is cached; a retry is told the same."""
    made = client(place)
    history = user("Once upon a time")
    for _ in range(3):
        reply = made.messages.create(model="toy", max_tokens=40, messages=history, extra_body={"temperature": 0})
        history += [{"role": "assistant", "content": reply.content}, *user("and then?")]
    assert (reply.usage.cache_read_input_tokens or 0) > 0
    text = reply.content[0].text  # type: ignore[union-attr]
    stop = text[5:8]
    again: Any = {"model": "toy", "max_tokens": 40, "messages": history[:-2], "stop_sequences": [stop]}
    first, second = (made.messages.create(**again, extra_body={"temperature": 0}) for _ in range(2))
    assert (first.stop_reason, first.stop_sequence) == ("stop_sequence", stop)
    assert first.content[0].text == text[: text.index(stop)]  # type: ignore[union-attr]
    assert first.content == second.content


def test_closing_a_stream_ends_the_request(place: Place) -> None:
    """A6: and the next one has the worker for itself."""
    made = client(place)
    with made.messages.stream(model="toy", max_tokens=7000, messages=user("long")) as stream:
        next(iter(stream.text_stream))
    place.wait_until_quiet()


def test_an_aborted_message_says_so(place: Place) -> None:
    """A1, E3: what there is of it, with a stop reason that nobody takes for the end."""
    made, rid = client(place), {"rid": place.name("long")}
    aborts: Any = {"cast_to": httpx2.Response, "body": rid}
    with made.messages.stream(model="toy", max_tokens=7000, messages=user("x"), extra_body=rid) as stream:
        next(iter(stream.text_stream))
        made.post("/v1/aborts", **aborts)
        final = stream.get_final_message()
    assert final.stop_reason == "abort"
    assert final.usage.output_tokens > 0


def test_errors_are_the_clients_own_kinds(place: Place) -> None:
    """E3, E4, S13."""
    made = client(place)

    def ask(made: anthropic.Anthropic = made, **fields: Any) -> Any:
        return made.messages.create(**{"model": "toy", "max_tokens": 4, "messages": user("x"), **fields})

    with pytest.raises(anthropic.NotFoundError) as unknown:
        ask(model="claude-opus")
    assert "claude-opus" in str(unknown.value)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.type") as wrong:
        ask(messages=[{"role": "user", "content": [image]}])
    assert wrong.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    with pytest.raises(anthropic.AuthenticationError):
        ask(client(place, api_key="rmk-nobody"))
    with pytest.raises(anthropic.APIStatusError) as late:
        ask(max_tokens=7000, extra_body={"running_timeout_s": 0.3, "ignore_eos": True})
    assert (late.value.status_code, late.value.body["error"]["reason"]) == (503, "running_timeout")  # type: ignore[index]
    body = {"running_timeout_s": 0.3, "ignore_eos": True}
    with pytest.raises(anthropic.APIStatusError, match="running_timeout"):  # noqa: SIM117 (the stream must be open)
        with made.messages.stream(model="toy", max_tokens=7000, messages=user("x"), extra_body=body) as stream:
            stream.until_done()


def test_a_token_in_authorization_is_a_key_too(place: Place) -> None:
    """S13: the client's `auth_token`."""
    made = anthropic.Anthropic(base_url=place.url, auth_token=ACME, max_retries=0)
    assert made.messages.create(model="toy", max_tokens=2, messages=user("x")).usage.output_tokens == 2


def test_sessions_and_names_are_extra_fields(place: Place) -> None:
    """P5, S14, T2."""
    made, name = client(place), place.name("chat/1")

    def turn(text: str, **session: Any) -> Any:
        extra = {"session": {"id": name, **session}, "temperature": 0}
        return made.messages.create(model="toy", max_tokens=8, messages=user(text), extra_body=extra)

    one, two = turn("one", create=True), turn("two")
    context = f"user: one\nassistant: {one.content[0].text}"
    assert two.content[0].text == expected(f"{context}\nuser: two\nassistant: ", 8)
    assert two.usage.cache_read_input_tokens in (len(context), len(context) - 1)
    assert two.model_extra["session"]["turn"] == 2


def test_a_tool_is_called_and_its_result_told(place: Place) -> None:
    """G01, I2: the agent's loop: the model must call, whole and streamed alike; then it reads what the tool said."""
    made = client(place)
    schema = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
    tool: Any = {"name": "weather", "input_schema": {**schema, "additionalProperties": False}, "strict": True}
    ask: Any = {"model": "toy", "max_tokens": 200, "tools": [tool], "messages": user("How is it?")}
    ask["tool_choice"] = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    message = made.messages.create(**ask, extra_body={"seed": 1})
    (use,) = message.content
    assert use.type == "tool_use"
    assert (message.stop_reason, use.name, use.input) == ("tool_use", "weather", {"city": "Oslo"})
    with made.messages.stream(**ask, extra_body={"seed": 1}) as stream:
        (again,) = stream.get_final_message().content
    assert again.type == "tool_use"
    assert (again.name, again.input) == (use.name, use.input)
    result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "rain"}]}
    history: Any = [*ask["messages"], message.to_param(), {"role": "user", "content": [result]}]
    told = made.messages.create(model="toy", max_tokens=8, tools=[tool], messages=history)
    assert told.usage.output_tokens == 8


def test_structured_output(place: Place) -> None:
    """G01: the client's own `.parse`."""

    class Count(BaseModel):
        count: int

    parsed = client(place).messages.parse(model="toy", max_tokens=200, messages=user("x"), output_format=Count)
    assert isinstance(parsed.parsed_output, Count)


def test_models_are_listed(place: Place) -> None:
    """And are the same whichever ingress is asked."""
    made = client(place)
    (model,) = made.models.list()
    assert (model.id, model.type, model.display_name) == ("toy", "model", "toy")
    assert {made.models.retrieve("toy").created_at for _ in range(8)} == {model.created_at}


def test_many_at_once_do_not_mix(place: Place) -> None:
    async def ask_all() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=place.url, api_key=ACME, max_retries=0) as made:

            async def ask(number: int) -> str:
                fields: Any = {"model": "toy", "max_tokens": 16, "messages": user(f"q{number}")}
                fields["extra_body"] = {"temperature": 0}
                if number % 2:
                    async with made.messages.stream(**fields) as stream:
                        return await stream.get_final_text()
                return (await made.messages.create(**fields)).content[0].text  # type: ignore[union-attr]

            return await asyncio.gather(*(ask(number) for number in range(24)))

    assert asyncio.run(ask_all()) == [expected(f"user: q{n}\nassistant: ", 16) for n in range(24)]


def test_a_reply_that_the_client_begins(place: Place) -> None:
    """What comes behind it, whole and streamed; white space at its end is refused as Anthropic's API does."""
    made = client(place)
    begun: Any = [*user("2 + 2?"), {"role": "assistant", "content": "It is ("}]
    ask: Any = {"model": "toy", "max_tokens": 12, "extra_body": {"temperature": 0}}
    want = expected("user: 2 + 2?\nassistant: It is (", 12)
    message = made.messages.create(messages=begun, **ask)
    assert [block.text for block in message.content if block.type == "text"] == [want]
    with made.messages.stream(messages=begun, **ask) as stream:
        assert "".join(stream.text_stream) == want
    with pytest.raises(anthropic.BadRequestError, match="white space"):
        made.messages.create(messages=[*user("2 + 2?"), {"role": "assistant", "content": "It is "}], **ask)
