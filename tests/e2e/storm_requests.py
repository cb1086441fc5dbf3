"""What clients do beside the turns of a session: requests without one, and those that must be refused."""

from __future__ import annotations

import re
from typing import Any

from tests.e2e.answers import error_of, outcome_of, streamed, text_of
from tests.e2e.raw_http import Leaving
from tests.e2e.storm import Driver

NONSENSE: tuple[Any, ...] = (
    b"{",
    b"\xff\xfe",
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
    [],
    {},
    {"messages": []},
    {"messages": "hello"},
    {"messages": [{"role": "wizard", "content": "x"}]},
    {"messages": [{"role": "user", "content": "x"}], "temperature": "hot"},
    {"messages": [{"role": "user", "content": "x"}], "max_tokens": -1},
    {"messages": [{"role": "user", "content": "x"}], "session": {"id": ""}},
    {"messages": [{"role": "user", "content": "x"}], "n": 0},
    {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "poem"}},
)
GRAMMARS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"guided_choice": ["red", "green", "blue"]}, "red|green|blue"),
    ({"guided_regex": "[0-9]{3}-[a-f]{2}"}, "[0-9]{3}-[a-f]{2}"),
    ({"guided_json": {"enum": ["heron", 7, None]}}, '"heron"|7|null'),
)


async def stateless(driver: Driver) -> None:
    """A plain request, left or not."""
    turn = driver.turn(driver.rng.choice([4, 40]))
    leave = Leaving(driver.rng.random() * 0.4, True) if driver.rng.random() < 0.6 else None
    turn.answer = await driver.weather.chat(_body(driver, turn.text, turn.max_tokens), leave)
    if outcome_of(turn.answer) == "length":
        driver.judge(turn, [[]])
    elif outcome_of(turn.answer) not in {"left", "queue_full"} | driver.weather.bearable:
        driver.fault(f"stateless: {turn.answer.status} {turn.answer.body[:200]!r}")


async def cut(driver: Driver) -> None:
    """A1, I1: a client that leaves before it has sent its whole request."""
    turn = driver.turn(30)
    leave = Leaving(0, driver.rng.random() < 0.5, part=driver.rng.random() * 0.9)
    await driver.weather.chat(_body(driver, turn.text, turn.max_tokens), leave)


async def guided(driver: Driver) -> None:
    """E7: output that follows a grammar, or a client that leaves while it is compiled or followed."""
    fields, pattern = driver.rng.choice(GRAMMARS)
    leave = Leaving(driver.rng.random() * 0.2, True) if driver.rng.random() < 0.3 else None
    body = {**_body(driver, "choose", 24), **fields}
    body.pop("min_tokens", None)
    answer = await driver.weather.chat(body, leave)
    outcome = outcome_of(answer)
    if outcome == "stop":
        if not re.fullmatch(pattern, text_of(answer).strip()):
            driver.fault(f"{fields}: {text_of(answer)!r}")
    elif outcome not in {"left", "queue_full", "length"} | driver.weather.bearable:
        driver.fault(f"{fields}: {answer.status} {answer.body[:200]!r}")


async def nonsense(driver: Driver) -> None:
    """I1: bodies that make no sense, and a grammar that is none."""
    unparsable = {**_body(driver, "x", 4), "guided_regex": "("}
    unparsable.pop("min_tokens", None)
    body = driver.rng.choice([*NONSENSE, unparsable])
    answer = await driver.weather.chat(body)
    expected = "grammar_invalid" if isinstance(body, dict) and "guided_regex" in body else "invalid"
    _expect(driver, body, answer, 400, expected)


async def refused(driver: Driver) -> None:
    """S7, S14, T2, K5: turns that must be refused, and leave the session as it is."""
    turn = driver.turn(4)
    cases: list[tuple[dict[str, Any], dict[str, Any], int, str]] = [
        ({"id": f"{driver.name}-nowhere"}, {}, 404, "session_unknown"),
        ({}, {"max_tokens": driver.weather.too_many_tokens}, 400, "too_large"),
    ]
    if driver.mode == "tree":
        cases.append(({"parent": "nowhere"}, {}, 404, "parent_unknown"))
    else:
        cases.append(({"replace": True}, {}, 400, "invalid"))
    if driver.nodes:
        cases.append(({"create": True}, {}, 409, "session_exists"))
        cases.append(({}, {"rid": driver.rng.choice(list(driver.nodes))}, 422, "invalid"))
    session, fields, status, reason = driver.rng.choice(cases)
    body = {**_body(driver, turn.text, 4), "rid": turn.rid, "session": {"id": driver.name, **session}, **fields}
    answer = await driver.weather.chat(body)
    if outcome_of(answer) != "queue_full":
        _expect(driver, body, answer, status, reason)


async def foretold(driver: Driver) -> None:
    """A5: an abort that is there before its request."""
    turn = driver.turn(30)
    told = await driver.weather.client.call("POST", "/v1/aborts", {"rid": turn.rid})
    if told.status != 200 or told.tree["unknown"] != [turn.rid]:
        driver.fault(f"{turn.rid}: aborting what is not there: {told.status} {told.body[:200]!r}")
    answer = await driver.weather.chat({**_body(driver, turn.text, 30), "rid": turn.rid})
    if outcome_of(answer) not in {"abort", "queue_full"} | driver.weather.bearable:
        driver.fault(f"{turn.rid}: aborted before it came, it ended {outcome_of(answer)}")


def _body(driver: Driver, text: str, max_tokens: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": driver.rng.random() < 0.5,
        "stream_options": {"include_usage": True},
        **driver.weather.oracle.options(max_tokens),
    }


def _expect(driver: Driver, body: Any, answer: Any, status: int, reason: str) -> None:
    error = error_of(answer)
    given = (answer.status, error["reason"] if error else None)
    if given != (status, reason) and not (driver.weather.losses or streamed(answer)):
        driver.fault(f"{body}: {given}, not {(status, reason)}")
