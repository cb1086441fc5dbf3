"""The product as its user meets it: `remora serve` with the default model, and the real `openai` client."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest
from openai import OpenAI

from tests.e2e.readme import examples
from tests.e2e.server import Server, running, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.model, pytest.mark.timeout(300)]

REPOSITORY = Path(__file__).parents[2]
MODEL = "SmolLM2-135M-Instruct"
# float32: in bfloat16 the last bit of a sum depends on the shape of the batch, and a near tie may fall either way.
CONFIG: dict[str, Any] = {
    "workers": {"count": 2},
    "model": {"dtype": "float32"},
    "engine": {"kv_tokens": 16384, "max_step_tokens": 128},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("serve"), CONFIG) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def say(client: OpenAI, text: str, session: dict[str, Any] | None = None, **fields: Any) -> Any:
    extra = {"session": session} if session else {}
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": text}],
        temperature=0,
        extra_body=extra,
        **{"max_tokens": 24, **fields},
    )


def test_second_turn_sends_only_what_is_new_and_uses_the_first(client: OpenAI, server: Server) -> None:
    """S1, K1, S14: the word is recalled, the prompt is T(1) + the new message, and its KV is there but for a token."""
    first = say(client, "The code word is heron. Please remember it.", {"id": "recall", "create": True})
    second = say(client, "What is the code word?", {"id": "recall"})
    assert "heron" in second.choices[0].message.content.lower()
    total = first.usage.total_tokens
    assert second.usage.prompt_tokens > total
    assert second.usage.prompt_tokens_details.cached_tokens in (total, total - 1)
    info = server.session("recall")
    assert (info["turns"], info["mode"], info["epoch"]) == (2, "tree", 1)
    assert info["tokens"] == second.usage.total_tokens


def converse(client: OpenAI, name: str, turns: int) -> tuple[list[str], list[int], set[str]]:
    """(replies, cached tokens, workers) of a scripted conversation."""
    replies, cached, workers = [], [], set()
    for number in range(turns):
        session = {"id": name} if number else {"id": name, "create": True}
        text = f"Turn {number}: tell me about the number {len(name) * 7 + number} and the letter {name[-1]}."
        answer = say(client, text, session, max_tokens=8)
        replies.append(answer.choices[0].message.content)
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        workers.add(answer.model_dump()["session"]["worker"])
    return replies, cached, workers


def test_eight_sessions_of_eight_turns_stick_and_equal_the_same_alone(client: OpenAI, server: Server) -> None:
    """P1, I3, K6: each on one worker, greedy outputs as alone, nothing request-owned at the end, all free after
    closing and flushing."""
    names = [f"crowd-{letter}" for letter in "abcdefgh"]
    with ThreadPoolExecutor(8) as pool:
        crowd = list(pool.map(lambda name: converse(client, name, 8), names))
    assert all(len(workers) == 1 for _, _, workers in crowd)
    assert len(set.union(*(workers for _, _, workers in crowd))) == 2
    for name, (replies, _, _) in zip(names, crowd, strict=True):
        assert server.http.delete(f"/v1/sessions/{name}").status_code == 200
        alone, cached, _ = converse(client, name, 8)
        assert replies == alone
        assert all(cached[1:])
        server.http.delete(f"/v1/sessions/{name}")
    assert server.pages("request_owned") == 0


def hang_up(server: Server, body: dict[str, Any], after: Any) -> float:
    """Send a chat request on a bare socket, wait for `after(socket)`, close. When it was closed."""
    data = orjson.dumps({"model": MODEL, "temperature": 0, **body})
    lines = ("POST /v1/chat/completions HTTP/1.1", "Host: x", f"Content-Length: {len(data)}", "", "")
    head = "\r\n".join(lines)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + data)
        after(connection)
    return time.monotonic()


def until_first_token(connection: socket.socket) -> None:
    received = b""
    while b'"content":' not in received.replace(b'"content":""', b""):
        received += connection.recv(65536)


@pytest.mark.parametrize("stage", ["decode", "prefill", "waiting"])
def test_closing_the_socket_gives_the_pages_back_and_frees_the_session(
    client: OpenAI, server: Server, stage: str
) -> None:
    """A1, A6, A7, K2: mid-stream, mid-prefill, in the queue: pages come back, and the next turn finds all that was
    committed, as if the aborted one had never been sent."""
    name = f"hangup-{stage}"
    first = say(client, "Remember the colour green.", {"id": name, "create": True})
    total = first.usage.total_tokens
    long_text = "word " * 3000
    body: dict[str, Any] = {
        "session": {"id": name},
        "stream": True,
        "max_tokens": 2000,
        "messages": [{"role": "user", "content": long_text if stage == "prefill" else "Count up to a thousand."}],
    }

    def after(connection: socket.socket) -> None:
        if stage == "decode":
            until_first_token(connection)
        else:
            wait_until(lambda: any(row["live"] for row in server.workers()))

    hang_up(server, body, after)
    wait_until(lambda: server.pages("request_owned") == 0)
    assert server.session(name)["turns"] == 1
    second = say(client, "Which colour?", {"id": name})
    assert second.usage.prompt_tokens_details.cached_tokens in (total, total - 1)
    assert sum(row["live"] for row in server.workers()) == 0


def test_abort_names_its_victim_and_the_client_gets_the_partial_text(client: OpenAI, server: Server) -> None:
    """A4, E3, E5: 200 with finish_reason abort, the text so far, and usage."""
    answers: list[Any] = []

    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as other:
        thread = threading.Thread(
            target=lambda: answers.append(
                other.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": "Count up to a million."}],
                    max_tokens=2000,
                    temperature=0,
                    extra_body={"rid": "victim", "ignore_eos": True},
                )
            )
        )
        thread.start()
        wait_until(lambda: any(row["running"] for row in server.workers()))
        time.sleep(0.5)
        report = server.http.post("/v1/aborts", json={"rid": "victim"}).json()
        thread.join(60)
    assert [(hit["rid"], hit["stage"]) for hit in report["hit"]] == [("victim", "decode")]
    answer = answers[0]
    assert answer.choices[0].finish_reason == "abort"
    assert 0 < answer.usage.completion_tokens < 2000
    again = server.http.post("/v1/aborts", json={"rid": "victim"}).json()
    assert (again["hit"], again["already_ended"]) == ([], ["victim"])


def test_killed_owner_costs_the_session_nothing_but_a_prefill(client: OpenAI, server: Server) -> None:
    """T1, T3, T4: SIGKILL: the next turn is answered with full history by another worker, under a higher epoch."""
    first = say(client, "The code word is heron. Please remember it.", {"id": "orphan", "create": True})
    owner = first.model_dump()["session"]["worker"]
    pid = next(row["pid"] for row in server.workers() if row["id"] == owner)
    os.kill(pid, signal.SIGKILL)
    second = say(client, "What is the code word?", {"id": "orphan"})
    assert "heron" in second.choices[0].message.content.lower()
    assert second.usage.prompt_tokens > first.usage.total_tokens
    assert second.model_dump()["session"]["worker"] != owner
    assert server.session("orphan")["epoch"] == 2
    wait_until(lambda: sum(row["state"] == "ready" for row in server.workers()) == 2, 120)


def test_the_readmes_curl_examples_do_what_it_says(server: Server) -> None:
    """In their order, with `curl` itself."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl here")
    found = examples((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert found, "the README has no examples with curl"
    for example in found:
        example.run(server.url)


def test_sessions_are_listed_closed_and_gone(client: OpenAI, server: Server) -> None:
    """S9, S11, S14."""
    say(client, "Hello.", {"id": "short", "create": True})
    listed = [row["id"] for row in server.http.get("/v1/sessions").json()["data"]]
    assert "short" in listed
    assert server.http.delete("/v1/sessions/short").status_code == 200
    assert server.http.delete("/v1/sessions/short").status_code == 404
    assert server.http.get("/v1/sessions/short").status_code == 404
    answer = server.http.post(
        "/v1/chat/completions",
        json={"model": MODEL, "session": {"id": "short"}, "messages": [{"role": "user", "content": "?"}]},
    )
    assert answer.status_code == 404
    assert answer.json()["error"]["reason"] == "session_unknown"


def test_taken_port_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError, match=rf"(?s)the server ended.*{port}") as caught:
            Server(tmp_path, {"workers": {"runner": "toy"}}, PORT=str(port))
    assert "Traceback" not in str(caught.value)


def test_missing_model_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no such model") as caught:
        Server(tmp_path, {}, MODEL="nowhere-to-be-found")
    assert "Traceback" not in str(caught.value)
