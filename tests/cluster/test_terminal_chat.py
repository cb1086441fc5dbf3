"""`remora chat` against a real ingress (its workers are scripted)."""

from __future__ import annotations

import builtins
import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
import uvicorn

from actors.ingress.app import build_app
from actors.ingress.core import Ingress
from actors.ingress.toy_text import toy_text
from actors.messages import Reason
from cluster.terminal_chat import Chat, ChatError, converse
from configs import RemoraConfig
from tests.ingress.scripted import ScriptedPool, ScriptedWorker, aborted, says, tokens


class Desk:
    """A server, a conversation with it, and what the server was asked."""

    def __init__(self, client: httpx.Client, worker: ScriptedWorker, system: str = "") -> None:
        self.client = client
        self.worker = worker
        self.chat = Chat(client, system=system, max_tokens=32, temperature=0.0)
        self.chat.open()

    def asked(self) -> list[str]:
        """What was sent to the worker, as text; a session without history is sent its opening."""
        return [bytes(submit.root_ids or submit.input_ids).decode() for submit in self.worker.submits]


@pytest.fixture
def worker() -> ScriptedWorker:
    return ScriptedWorker("w1", says("Hello there."))


@pytest.fixture
def client(worker: ScriptedWorker) -> Iterator[httpx.Client]:
    ingress = Ingress(ScriptedPool(worker), toy_text(), RemoraConfig())
    server = uvicorn.Server(uvicorn.Config(build_app(ingress), port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        yield client
    server.should_exit = True
    thread.join()


def wait_until(reached: Callable[[], object]) -> None:
    deadline = time.monotonic() + 5.0
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def desk(client: httpx.Client, worker: ScriptedWorker) -> Desk:
    return Desk(client, worker)


def type_in(monkeypatch: pytest.MonkeyPatch, *lines: str | type[BaseException]) -> None:
    """What the user types; an exception is what a key press raises. Then the input ends."""
    typed = iter(lines)

    def read(prompt: str) -> str:
        line = next(typed, EOFError)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr(builtins, "input", read)


def test_a_turn_sends_only_what_is_new_in_the_same_session(desk: Desk) -> None:
    """S1: the server keeps the history."""
    assert "".join(desk.chat.reply("first")) == "Hello there."
    assert "".join(desk.chat.reply("second")) == "Hello there."
    first, second = desk.worker.submits
    assert first.turn is not None
    assert second.turn is not None
    assert first.turn.session_id == second.turn.session_id == desk.chat.session_id
    assert "first" not in desk.asked()[1]


def test_the_system_message_is_sent_until_a_turn_was_kept(client: httpx.Client, worker: ScriptedWorker) -> None:
    """S2: a turn that ends in an abort is not history, and neither is what it began with."""
    desk = Desk(client, worker, system="Be brief.")
    worker.script = lambda submit: [aborted(submit, Reason.WAITING_TIMEOUT)]
    with pytest.raises(ChatError):
        "".join(desk.chat.reply("first"))
    worker.script = says("Yes.")
    "".join(desk.chat.reply("second"))
    "".join(desk.chat.reply("third"))
    assert ["Be brief." in text for text in desk.asked()] == [True, True, False]


def test_a_conversation_shows_replies_and_errors_and_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    type_in(monkeypatch, "hi", "", KeyboardInterrupt, "/info", "/what", "hi again", "/exit", "never read")
    converse(desk.chat)
    shown = capsys.readouterr().out
    assert shown.count("Hello there.") == 2
    assert desk.chat.session_id in shown
    assert "(/exit ends)" in shown
    assert len(desk.worker.submits) == 2


def test_ctrl_c_during_a_reply_stops_it_and_the_next_turn_works(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A7: after an abort the session takes its next turn at once."""
    real = desk.chat.reply

    def interrupted(text: str) -> Iterator[str]:
        with contextlib.closing(real(text)) as pieces:  # type: ignore[type-var]
            yield next(pieces)
            desk.worker.script = says("Hello there.")
            monkeypatch.setattr(desk.chat, "reply", real)
            raise KeyboardInterrupt

    desk.worker.script = lambda submit: [tokens(submit, "Hel")]
    monkeypatch.setattr(desk.chat, "reply", interrupted)
    type_in(monkeypatch, "hi", "hi again")
    converse(desk.chat)
    shown = capsys.readouterr().out
    assert "(stopped; this turn is not part of the conversation)" in shown
    assert "Hello there." in shown
    wait_until(lambda: [one.reason for one in desk.worker.aborts] == [Reason.CLIENT_DISCONNECT])


def test_new_closes_the_old_session_and_opens_another(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    old = desk.chat.session_id
    type_in(monkeypatch, "/new")
    converse(desk.chat)
    assert desk.chat.session_id != old
    assert desk.client.get(f"/v1/sessions/{old}").status_code == 404
