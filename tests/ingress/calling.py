"""Tools for tests, and what clients make of answers that call them."""

from __future__ import annotations

from typing import Any

from tests.ingress.asgi import Call

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": CITY},
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'
TWO = 'I look.\n<tool_call>{"name": "now", "arguments": {}}</tool_call>\n' + ONE


def message_of(call: Call) -> dict[str, Any]:
    assert call.status == 200, call.body
    message: dict[str, Any] = call.json()["choices"][0]["message"]
    return message


def gathered(call: Call) -> dict[str, Any]:
    """A stream's deltas put together as clients do it: a call's parts by their index."""
    message: dict[str, Any] = {"role": None, "content": ""}
    calls: dict[int, dict[str, Any]] = {}
    for event in call.events[:-1]:
        for choice in event["choices"]:
            delta = choice["delta"]
            message["role"] = delta.get("role", message["role"])
            for name in ("content", "reasoning_content"):
                if delta.get(name):
                    message[name] = message.get(name, "") + delta[name]
            for piece in delta.get("tool_calls", ()):
                index = piece["index"]
                if index not in calls:
                    assert set(piece) == {"index", "id", "type", "function"}
                    calls[index] = {key: value for key, value in piece.items() if key != "index"}
                    calls[index]["function"] = dict(piece["function"])
                else:
                    assert set(piece) == {"index", "function"}
                    calls[index]["function"]["arguments"] += piece["function"]["arguments"]
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return message


def finish_of(call: Call) -> str:
    if "text/event-stream" in call.headers["content-type"]:
        finishes = [event["choices"][0]["finish_reason"] for event in call.events[:-1]]
        return str(next(reason for reason in finishes if reason))
    return str(call.json()["choices"][0]["finish_reason"])
