"""`session.messages: "all"`: a client that always sends everything, over real workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from actors.ingress.toy_text import TOY_VOCAB_BYTES, toy_text
from actors.runner.script import ScriptRunner
from actors.runner.toy import toy_continuation
from tests.ingress.asgi import Call, run
from tests.ingress.calling import ONE, TOOLS, TWO
from tests.ingress.harness import edge
from tests.ingress.local import Cluster, cluster
from tests.ingress.scripted import says

SESSION = {"id": "s", "create": True, "messages": "all"}


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


async def ask(at: Cluster, messages: list[Any], **fields: Any) -> Call:
    asked = {"temperature": 0, "max_tokens": 8, "session": SESSION, **fields}
    return await at.client.chat(messages, **asked).whole()


def text_of(call: Call) -> str:
    assert call.status == 200, call.body
    return str(call.json()["choices"][0]["message"]["content"])


def usage(call: Call) -> tuple[int, int]:
    told = call.json()["usage"]
    return told["prompt_tokens"], told["prompt_tokens_details"]["cached_tokens"]


def history(*said: str) -> list[int]:
    """Ids of a conversation as it was generated: what was sent, and 8 tokens of reply, by turns."""
    ids: list[int] = []
    for number, content in enumerate(said):
        ids += list((("\n" if number else "") + f"user: {content}\nassistant: ").encode())
        ids += toy_continuation(ids, 8)
    return ids


def test_a_program_that_sends_everything_has_a_session_all_the_same(tmp_path: Path) -> None:
    """S1, K1: the same body each time but for the messages; the history's own tokens and KV are gone on with."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            messages = [{"role": "system", "content": "be brief"}]
            seen = 0
            for number in range(5):
                messages.append(user(f"question {number}"))
                call = await ask(at, messages)
                prompt, cached = usage(call)
                assert cached >= seen - 1
                assert call.json()["session"]["turn"] == number + 1
                seen = prompt + 8
                messages.append(assistant(text_of(call)))
            session = (await at.client.get("/v1/sessions/s")).json()
        assert session["turns"] == 5

    run(check())


def test_what_is_edited_is_a_branch_and_the_old_one_stays(tmp_path: Path) -> None:
    """S3, T6: an edited question and an edited reply lead elsewhere; the first branch is gone on with later."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            first = text_of(await ask(at, [user("one")]))
            second = text_of(await ask(at, [user("one"), assistant(first), user("two")]))
            assert second == bytes(history("one", "two")[-8:]).decode()
            other = text_of(await ask(at, [user("one"), assistant(first), user("else")]))
            assert other == bytes(history("one", "else")[-8:]).decode()
            edited = await ask(at, [user("one"), assistant("no"), user("two")])
            root = b"user: one\nassistant: no\nuser: two\nassistant: "
            assert text_of(edited) == bytes(toy_continuation(list(root), 8)).decode()
            whole = [user("one"), assistant(first), user("two"), assistant(second), user("three")]
            third = await ask(at, whole)
            assert text_of(third) == bytes(history("one", "two", "three")[-8:]).decode()
            assert usage(third)[1] >= len(history("one", "two")) - 1 - 16
            assert (await at.client.get("/v1/sessions/s")).json()["turns"] == 5

    run(check())


def test_asking_again_is_another_turn_and_a_named_one_is_replayed(tmp_path: Path) -> None:
    """T2: without a name, the same conversation is answered anew; with one, it is answered once."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            sampled: dict[str, Any] = {"temperature": 1.0}
            replies = {text_of(await ask(at, [user("one")], seed=seed, **sampled)) for seed in (1, 2)}
            assert len(replies) == 2
            named = [await ask(at, [user("one")], rid="mine", **sampled) for _ in range(2)]
            assert [call.json().get("replayed") for call in named] == [None, True]
            assert named[0].json()["id"] == "mine"
            for reply in (*replies, text_of(named[0])):
                on = await ask(at, [user("one"), assistant(reply), user("two")])
                assert usage(on)[1] >= len(b"user: one\nassistant: ") + 8 - 1 - 16
            assert (await at.client.get("/v1/sessions/s")).json()["turns"] == 6

    run(check())


def test_a_name_that_was_used_for_other_messages_is_refused(tmp_path: Path) -> None:
    """T2: same key, another body: 422, wherever in the conversation the bodies differ."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            first = text_of(await ask(at, [user("one")], rid="mine"))
            for messages in ([user("two")], [user("one"), assistant(first), user("two")]):
                other = await ask(at, messages, rid="mine")
                assert (other.status, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
            assert (await ask(at, [user("one")], rid="mine")).json()["replayed"] is True
            assert text_of(await ask(at, [user("two")], rid="min"))
            assert text_of(await ask(at, [user("two")], rid="a~mine"))
            assert (await at.client.get("/v1/sessions/s")).json()["turns"] == 3
            new = {"id": "s"}
            assert text_of(await ask(at, [user("three")], rid="plain", session=new))
            assert (await ask(at, [user("three")], rid="plain")).status == 422

    run(check())


@pytest.mark.parametrize("named", [{"rid": "mine"}, {"prefix": "mi"}])
def test_a_turn_can_be_aborted_by_the_name_that_the_client_gave(tmp_path: Path, named: dict[str, str]) -> None:
    """A1, S2."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.005) as at:
            call = at.client.chat([user("one")], rid="mine", session=SESSION, max_tokens=2000, stream=True)
            await call.until('"content":"')
            assert (await at.client.post("/v1/aborts", {"prefix": "whole"})).json()["hit"] == []
            report = (await at.client.post("/v1/aborts", named)).json()
            assert len(report["hit"]) == 1
            await call.whole()
            assert (await at.client.get("/v1/sessions/s")).json()["turns"] == 0

    run(check())


def test_a_streaming_session_takes_what_goes_on_and_refuses_what_differs(tmp_path: Path) -> None:
    """S3."""

    async def check() -> None:
        async with cluster(tmp_path) as at:
            session = {**SESSION, "mode": "streaming"}
            first = text_of(await ask(at, [user("one")], session=session))
            second = await ask(at, [user("one"), assistant(first), user("two")], session=session)
            assert second.json()["session"]["turn"] == 2
            refused = await ask(at, [user("one"), assistant("no"), user("two")], session=session)
        assert refused.status == 400
        assert refused.json()["error"]["param"] == "messages"

    run(check())


def test_other_tools_are_another_conversation() -> None:
    """T6: what the model was told before its first word belongs to the context."""

    async def check() -> None:
        async with edge(says("x")) as at:
            names = []
            for kwargs in ({}, {"enable_thinking": False}, {}):
                await at.client.chat([user("one")], session=SESSION, chat_template_kwargs=kwargs).whole()
                names.append(at.worker.submits[-1].rid.partition("~")[0])
        assert names[0] == names[2] != names[1]

    run(check())


@pytest.mark.parametrize(
    ("param", "session"),
    [
        ("session.messages", {"messages": "some"}),
        ("session.messages", {"messages": 1}),
        ("session.parent", {"messages": "all", "parent": "p"}),
        ("session.offset", {"messages": "all", "offset": 3}),
        ("session.replace", {"messages": "all", "replace": True}),
        ("session.drop_previous_output", {"messages": "all", "drop_previous_output": True}),
    ],
)
def test_a_wrong_value_is_400_naming_the_field(param: str, session: dict[str, Any]) -> None:
    """I1."""

    async def check() -> None:
        async with edge(says("x")) as at:
            call = await at.client.chat([user("one")], session={"id": "s", "create": True, **session}).whole()
            assert (call.status, call.json()["error"]["param"]) == (400, param)
            plain = {"prompt": "a", "session": {"id": "s", "messages": "all"}}
            assert (await at.client.post("/v1/completions", plain)).json()["error"]["param"] == "session.messages"
            assert not at.worker.submits

    run(check())


def test_reasoning_that_is_sent_back_is_told_to_the_worker() -> None:
    """T6: the last reply is met with all that the client says of it."""

    async def check() -> None:
        async with edge(says("x")) as at:
            reply = {**assistant("Four"), "reasoning_content": "hm"}
            await at.client.chat([user("one"), reply, user("two")], session=SESSION).whole()
            turn = at.worker.submits[-1].turn
        assert turn is not None
        assert (turn.reply, turn.reasoning) == ("Four", "hm")

    run(check())


def as_the_client_has_it(call: Call) -> dict[str, Any]:
    """The `openai` client's own message, sent back the way its documentation has it."""
    assert call.status == 200, call.body
    return ChatCompletion.model_validate(call.json()).choices[0].message.model_dump()


def as_an_agent_has_it(call: Call) -> dict[str, Any]:
    """Taken apart and put together again, as frameworks do: names of its own, other blanks, no empty fields."""
    message = as_the_client_has_it(call)
    calls = []
    for number, one in enumerate(message["tool_calls"]):
        arguments = json.dumps(json.loads(one["function"]["arguments"]), indent=1, sort_keys=True)
        function = {"name": one["function"]["name"], "arguments": arguments}
        calls.append({"type": "function", "id": f"mine-{number}", "function": function})
    return {"role": "assistant", "content": message["content"] or "", "tool_calls": calls}


@pytest.mark.parametrize("echo", [as_the_client_has_it, as_an_agent_has_it])
@pytest.mark.parametrize("mode", ["tree", "streaming"])
def test_an_agent_that_sends_everything_has_a_session_all_the_same(
    tmp_path: Path, echo: Callable[[Call], dict[str, Any]], mode: str
) -> None:
    """S1, K1, S3: each step goes on from the one before by its own tokens, calls and their results in between."""

    def runner() -> ScriptRunner:
        return ScriptRunner(list(TWO.encode()), vocab_bytes=TOY_VOCAB_BYTES, eos_id=257)

    async def check() -> None:
        async with cluster(tmp_path, runner=runner) as at:
            session, seen = {**SESSION, "mode": mode}, 0
            messages: list[dict[str, Any]] = [user("How is it?")]
            for number in range(3):
                call = await ask(at, messages, tools=TOOLS, max_tokens=400, session=session)
                prompt, cached = usage(call)
                assert call.json()["session"]["turn"] == number + 1
                assert cached >= seen - 1
                results = [{"role": "tool", "tool_call_id": "", "content": "rain"} for _ in range(2)]
                reply = echo(call)
                for result, one in zip(results, reply["tool_calls"], strict=True):
                    result["tool_call_id"] = one["id"]
                text = "".join(f"tool: {result['content']}\n" for result in results) + "assistant: "
                assert not number or prompt == seen + len(f"\n{text}")
                seen = prompt + len(TWO) + 1
                messages += [reply, *results]
            assert (await at.client.get("/v1/sessions/s")).json()["turns"] == 3

    run(check())


def test_an_edited_call_is_a_branch(tmp_path: Path) -> None:
    """S3, T6: what a person has changed before it was run is what the model has to read."""

    def runner() -> ScriptRunner:
        return ScriptRunner(list(ONE.encode()), vocab_bytes=TOY_VOCAB_BYTES, eos_id=257)

    async def check() -> None:
        async with cluster(tmp_path, runner=runner) as at:
            fields: dict[str, Any] = {"tools": TOOLS, "max_tokens": 400}
            reply = as_the_client_has_it(await ask(at, [user("How is it?")], **fields))
            called = reply["tool_calls"][0]["function"]
            called["arguments"] = called["arguments"].replace("Paris", "Rome")
            result = {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": "sun"}
            edited = await ask(at, [user("How is it?"), reply, result], **fields)
            root = toy_text().template.render_root([user("How is it?"), reply | {"content": ""}, result], TOOLS)
            assert usage(edited)[0] == len(root)

    run(check())
