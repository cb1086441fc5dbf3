"""Batches over POST /generate: a request of several prompts is one request (rule A2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actors.messages import Event, Reason, Submit
from actors.runner.toy import toy_continuation
from tests.ingress.asgi import Call, Client, eventually, run
from tests.ingress.harness import edge
from tests.ingress.local import cluster
from tests.ingress.scripted import aborted, says, stopped, tokens

GREEDY = {"temperature": 0, "max_new_tokens": 8}


def generate(client: Client, text: Any, **fields: Any) -> Call:
    return client.start("POST", "/generate", {"text": text, "sampling_params": GREEDY, **fields})


def expected(prompt: str, count: int = 8) -> str:
    return bytes(toy_continuation(list(prompt.encode()), count)).decode()


def last_of_each(call: Call) -> list[Any]:
    """The last event of each reply of a stream, in order of their numbers."""
    last = {event["index"]: event for event in call.events[:-1]}
    return [last[index] for index in sorted(last)]


def test_a_batch_says_what_its_prompts_say_alone(tmp_path: Path) -> None:
    """I3: whatever the batch; a list of one is a list, too."""
    prompts = ["hello", "a", "the third one"]

    async def check() -> None:
        async with cluster(tmp_path, workers=2) as at:
            batch = (await generate(at.client, prompts).whole()).json()
            stream = await generate(at.client, prompts, stream=True).whole()
            ids = (await generate(at.client, None, input_ids=[list(text.encode()) for text in prompts]).whole()).json()
            one = (await generate(at.client, prompts[:1]).whole()).json()
        texts = [expected(text) for text in prompts]
        assert [reply["text"] for reply in batch] == texts == [reply["text"] for reply in ids]
        assert [event["text"] for event in last_of_each(stream)] == texts
        assert stream.events.count("[DONE]") == 1
        assert [reply["text"] for reply in one] == texts[:1]
        assert [reply["meta_info"]["prompt_tokens"] for reply in batch] == [len(text) for text in prompts]

    run(check())


def test_a_seed_means_the_same_in_a_batch_as_alone(tmp_path: Path) -> None:
    """I3: and several replies to one prompt differ."""
    settings = {"temperature": 1.0, "max_new_tokens": 8, "sampling_seed": 7}

    async def check() -> None:
        async with cluster(tmp_path) as at:
            batch = (await generate(at.client, ["a", "b"], sampling_params=settings).whole()).json()
            alone = (await generate(at.client, "b", sampling_params=settings).whole()).json()
            assert batch[1]["text"] == alone["text"]
        async with edge(says("x")) as at:
            await generate(at.client, "a", sampling_params={**settings, "n": 3}).whole()
            assert [submit.sampling.seed for submit in at.worker.submits] == [7, 8, 9]

    run(check())


def test_replies_come_prompt_by_prompt_and_have_their_names() -> None:
    """A2: children of `job` are `job_0`, `job_1`, …, linked as one batch; n replies to each prompt."""

    async def check() -> None:
        async with edge(lambda s: [tokens(s, bytes(s.input_ids).decode()), stopped(s, 1)]) as at:
            call = await generate(at.client, ["a", "b"], rid="job", sampling_params={**GREEDY, "n": 2}).whole()
        assert [reply["text"] for reply in call.json()] == ["a", "a", "b", "b"]
        assert [reply["meta_info"]["id"] for reply in call.json()] == ["job_0", "job_1", "job_2", "job_3"]
        assert {submit.batch for submit in at.worker.submits} == {"job"}

    run(check())


def test_a_batch_may_name_its_parts() -> None:
    """T2: then these are their names, for aborts and for repetitions."""

    async def check() -> None:
        async with edge(says("x")) as at:
            call = await generate(at.client, ["a", "b"], rid=["left", "right"]).whole()
            assert [reply["meta_info"]["id"] for reply in call.json()] == ["left", "right"]
            assert [submit.rid for submit in at.worker.submits] == ["left", "right"]
            assert all(submit.idempotent for submit in at.worker.submits)
            assert len({submit.batch for submit in at.worker.submits}) == 1
            one = await generate(at.client, ["a"], rid=["only"]).whole()
            assert [reply["meta_info"]["id"] for reply in one.json()] == ["only"]

    run(check())


def test_each_prompt_may_have_settings_of_its_own() -> None:
    async def check() -> None:
        async with edge(says("ab")) as at:
            settings = [
                {"max_new_tokens": 3, "stop": "b"},
                {"max_new_tokens": 4, "regex": "[a-b]+", "sampling_seed": 9},
            ]
            call = await generate(at.client, ["x", "y"], sampling_params=settings).whole()
            assert call.status == 200
            first, second = (submit.sampling for submit in at.worker.submits)
            assert (first.max_tokens, first.stop, second.max_tokens, second.seed) == (3, ("b",), 4, 9)
            assert at.worker.submits[0].grammar is None
            assert at.worker.submits[1].grammar is not None
            wrong = await generate(at.client, ["x", "y"], sampling_params=[{}, {"temperature": "hot"}]).whole()
            assert wrong.json()["error"]["param"] == "sampling_params[1].temperature"

    run(check())


LONG = {"temperature": 0, "max_new_tokens": 4000, "ignore_eos": True}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "settings", "param"),
    [
        ("x" * 8192, LONG, "text[1]"),
        ("x" * 5000, LONG, "sampling_params.max_new_tokens"),
        ("x" * 5000, [{**LONG, "max_new_tokens": 8}, LONG, LONG], "sampling_params[1].max_new_tokens"),
    ],
    ids=["prompt", "length", "own length"],
)
def test_one_prompt_that_is_refused_refuses_all(
    tmp_path: Path, stream: bool, text: str, settings: Any, param: str
) -> None:
    """Session case M07: the error names the prompt, or its settings, and the others are not left running."""

    async def check() -> None:
        async with cluster(tmp_path, workers=2, step_s=0.001) as at:
            call = await generate(at.client, ["a", text, "b"], sampling_params=settings, stream=stream).whole()
            if call.status == 200:  # A stream that had begun.
                error = next(event["error"] for event in call.events if "error" in event)
            else:
                error = call.json()["error"]
            assert (error["reason"], error["code"]) == ("too_large", "context_length_exceeded")
            assert error["param"] == param
            assert stream or call.status == 400
            await eventually(lambda: not any(at.shell(worker).stats()["live"] for worker in ("w1", "w2")))
            await eventually(lambda: not any(at.pages(worker)["request_owned"] for worker in ("w1", "w2")))

    run(check())


def test_a_part_that_fails_ends_the_others_at_once() -> None:
    """Session case M07: also when it had begun; it is counted as one request (E6)."""

    def script(submit: Submit) -> list[Event]:
        return [aborted(submit, Reason.RUNNING_TIMEOUT)] if submit.rid == "job_1" else [tokens(submit, "x")]

    async def check() -> None:
        async with edge(script) as at:
            call = await generate(at.client, ["a", "b", "c"], rid="job").whole()
            assert (call.status, call.json()["error"]["reason"]) == (503, "running_timeout")
            keys = {submit.key for submit in at.worker.submits if submit.rid != "job_1"}
            await eventually(lambda: {key for abort in at.worker.aborts for key in abort.keys} == keys)
            await eventually(lambda: sum(at.ends().values()) == 1)

    run(check())


def test_an_abort_of_the_batch_ends_all_its_parts_and_no_others(tmp_path: Path) -> None:
    """A2: session case A17: `job` never means `job1`; all are answers with what they had."""

    async def check() -> None:
        async with cluster(tmp_path, workers=2, step_s=0.002) as at:
            long = {"temperature": 0, "max_new_tokens": 4000, "ignore_eos": True}
            batch = generate(at.client, ["a", "b"], rid="job", sampling_params=long)
            other = generate(at.client, "c", rid="job1", sampling_params=long, stream=True)
            await other.until("text")
            await eventually(lambda: sum(at.shell(w).stats()["running"] for w in ("w1", "w2")) == 3)  # type: ignore[misc]
            report = (await at.client.post("/abort_request", {"rid": "job"})).json()
            assert sorted(hit["rid"] for hit in report["hit"]) == ["job_0", "job_1"]
            assert report["unknown"] == []
            await batch.whole()
            assert batch.status == 200
            assert [reply["meta_info"]["finish_reason"]["type"] for reply in batch.json()] == ["abort", "abort"]
            assert not other.task.done()
            again = (await at.client.post("/abort_request", {"rid": "job"})).json()
            assert (again["hit"], again["already_ended"], again["unknown"]) == ([], ["job"], [])
            other.disconnect()
            await other.whole()

    run(check())


def test_an_abort_of_a_batch_finds_it_where_no_worker_has_it_yet() -> None:
    """A1, A2: parts that wait for a worker are known by their batch's name, too."""

    async def check() -> None:
        async with edge() as at:
            at.pool.ready = False
            call = generate(at.client, ["a", "b"], rid="job")
            await eventually(lambda: len(at.ingress.router.running) == 2)
            report = (await at.client.post("/abort_request", {"rid": "job"})).json()
            assert sorted(hit["rid"] for hit in report["hit"]) == ["job_0", "job_1"]
            assert report["unknown"] == []
            assert not any(abort.remember for abort in at.worker.aborts)
            assert (await call.whole()).status == 200

    run(check())


def test_an_abort_of_one_part_leaves_the_others(tmp_path: Path) -> None:
    """A2: session case A18."""

    async def check() -> None:
        async with cluster(tmp_path, step_s=0.002) as at:
            settings = {"temperature": 0, "max_new_tokens": 300, "ignore_eos": True}
            batch = generate(at.client, ["a", "b"], rid="job", sampling_params=settings)
            await eventually(lambda: at.shell().stats()["running"] == 2)
            report = (await at.client.post("/abort_request", {"rid": "job_0"})).json()
            assert [hit["rid"] for hit in report["hit"]] == ["job_0"]
            await batch.whole()
            ends = [reply["meta_info"]["finish_reason"]["type"] for reply in batch.json()]
            assert ends == ["abort", "length"]
            assert batch.json()[1]["text"] == expected("b", 300)

    run(check())
