"""`remora chat`: a conversation in the terminal. The server keeps the history; each turn sends only what is new."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from cluster.usage import UsageError

with contextlib.suppress(ImportError):
    import readline  # noqa: F401 - line editing and history for input()

HELP = "Ctrl-C stops a reply. /info shows the session, /new begins another, /exit ends."
ANSWER_S = 30.0


class ChatError(Exception):
    """The server refused or failed. The message is its own."""


class Chat:
    """One session at a time."""

    def __init__(self, client: httpx.Client, *, system: str, max_tokens: int, temperature: float) -> None:
        self._client = client
        self._system = system
        self._options = {"max_tokens": max_tokens, "temperature": temperature}
        self.session_id = ""
        self._begun = False

    def open(self) -> None:
        """Raises ChatError."""
        self.session_id = self._json("POST", "/v1/sessions", {})["id"]
        self._begun = False

    def close(self) -> None:
        """Raises ChatError."""
        self._json("DELETE", f"/v1/sessions/{self.session_id}?mode=abort")

    def info(self) -> dict[str, Any]:
        """Raises ChatError."""
        return self._json("GET", f"/v1/sessions/{self.session_id}")

    def model(self) -> str:
        """The served model's name. Raises ChatError."""
        return str(self._json("GET", "/v1/models")["data"][0]["id"])

    def reply(self, text: str) -> Iterator[str]:
        """Pieces of the model's reply. Closing the iterator aborts it (the socket closes with it). Raises ChatError."""
        messages = [{"role": "user", "content": text}]
        if self._system and not self._begun:
            messages.insert(0, {"role": "system", "content": self._system})
        # A turn that was stopped may not have ended yet when the next one arrives: the next one takes its place.
        session = {"id": self.session_id, "on_busy": "supersede"}
        body = {"messages": messages, "stream": True, "session": session, **self._options}
        with _network_errors(), self._client.stream("POST", "/v1/chat/completions", json=body, timeout=None) as answer:
            if answer.is_error:
                answer.read()
                raise ChatError(_message(answer))
            for line in answer.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield from self._piece(json.loads(line[len("data: ") :]))

    def _piece(self, chunk: dict[str, Any]) -> Iterator[str]:
        if "error" in chunk:
            raise ChatError(chunk["error"]["message"])
        for choice in chunk.get("choices", ()):
            content = choice.get("delta", {}).get("content")
            if content:
                yield content
            if choice.get("finish_reason") in ("stop", "length"):
                self._begun = True

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        with _network_errors():
            answer = self._client.request(method, path, json=body, timeout=ANSWER_S)
            if answer.is_error:
                raise ChatError(_message(answer))
            tree: dict[str, Any] = answer.json()
            return tree


def chat(
    url: str, *, system: str, max_tokens: int, temperature: float, headers: Mapping[str, str] | None = None
) -> int:
    """Raises UsageError when there is no server to talk to."""
    with httpx.Client(base_url=url.rstrip("/"), headers=headers) as client:
        conversation = Chat(client, system=system, max_tokens=max_tokens, temperature=temperature)
        try:
            model = conversation.model()
            conversation.open()
        except (ChatError, httpx.InvalidURL) as error:
            raise UsageError(f"no server at {url}: {error}") from error
        print(f"{model} at {url}. {HELP}")
        try:
            converse(conversation)
        finally:
            with contextlib.suppress(ChatError):  # The server may be gone; the session then ends by its idle clock.
                conversation.close()
    return 0


def converse(conversation: Chat) -> None:
    """Read, answer, until the input ends."""
    while True:
        try:
            text = input("\n> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\n(/exit ends)")
            continue
        if text == "/exit":
            return
        if text:
            _guarded(conversation, text)


def _guarded(conversation: Chat, text: str) -> None:
    try:
        _do(conversation, text)
    except ChatError as error:
        print(f"! {error}")
    except KeyboardInterrupt:
        print("\n(stopped; this turn is not part of the conversation)")


def _do(conversation: Chat, text: str) -> None:
    if text == "/info":
        for name, value in conversation.info().items():
            print(f"{name:>18}: {value}")
    elif text == "/new":
        conversation.close()
        conversation.open()
        print(f"(session {conversation.session_id})")
    elif text.startswith("/"):
        print(HELP)
    else:
        # Closing the generator closes the socket before anything else is sent.
        with contextlib.closing(conversation.reply(text)) as pieces:  # type: ignore[type-var]
            for piece in pieces:
                print(piece, end="", flush=True)
        print()


@contextlib.contextmanager
def _network_errors() -> Iterator[None]:
    try:
        yield
    except (httpx.HTTPError, ValueError) as error:
        raise ChatError(str(error) or type(error).__name__) from error


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.reason_phrase}"
