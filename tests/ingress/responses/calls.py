"""Asking for responses, in process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors.runner.toy import toy_continuation
from tests.ingress.asgi import Call, Client


@dataclass
class Asker:
    """`client`: also one that shows a key."""

    client: Client

    def start(self, text: object = "hi", headers: dict[str, str] | None = None, **fields: Any) -> Call:
        body = {"input": text, "temperature": 0, "max_output_tokens": 8, **fields}
        return self.client.start("POST", "/v1/responses", body, headers)

    async def ask(self, text: object = "hi", headers: dict[str, str] | None = None, **fields: Any) -> Any:
        """The response, from its object or from the last event of its stream."""
        call = await self.start(text, headers, **fields).whole()
        assert call.status == 200, call.body
        return call.events[-1]["response"] if fields.get("stream") else call.json()

    async def refused(self, text: object = "hi", **fields: Any) -> Any:
        """(status, error)"""
        call = await self.start(text, **fields).whole()
        assert call.status >= 400, call.body
        return call.status, call.json()["error"]

    async def get(self, response_id: str, rest: str = "") -> Call:
        return await self.client.get(f"/v1/responses/{response_id}{rest}")

    async def cancel(self, response_id: str) -> Call:
        return await self.client.post(f"/v1/responses/{response_id}/cancel")

    async def delete(self, path: str) -> Call:
        return await self.client.start("DELETE", path).whole()


def text_of(response: Any) -> str:
    """All text of its messages."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


def said(prompt: str, count: int = 8) -> str:
    """What the toy runner says to this context."""
    return bytes(toy_continuation(list(prompt.encode()), count)).decode()


def kinds(call: Call) -> list[str]:
    return [event["type"] for event in call.events]


def without_times(response: Any) -> Any:
    """What two responses to one question have in common."""
    names = ("id", "created_at", "completed_at", "output", "usage")
    common = {name: value for name, value in response.items() if name not in names}
    counts = {name: response["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")}
    return {**common, "text": text_of(response), "counts": counts}
