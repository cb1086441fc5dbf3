"""A turn that comes while its session's KV is being read for a turn that is over by then (rules K7, T6)."""

from __future__ import annotations

from typing import Any

import pytest

from actors.engine.request import RequestState
from actors.messages import OnBusy, Reason, SessionMode
from tests.engine.driver import Driver, expected


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("another root", {"parent": None, "replace": True}),
        ("a part of it", {"offset": 5, "on_busy": OnBusy.SUPERSEDE}),
        ("without its output", {"drop_previous_output": True, "on_busy": OnBusy.SUPERSEDE}),
    ],
)
def test_what_is_read_for_one_branch_is_not_taken_for_another(name: str, fields: dict[str, Any]) -> None:
    """K7, T6, S3: the turn that takes over continues from elsewhere: only what both have in common may count as
    cached, or it would be computed on top of tokens that it does not have."""
    driver = Driver(page_size=4, kv_tokens=48, max_step_tokens=64, hibernate_below=1.0)
    driver.open("s", SessionMode.TREE)
    prompt = [97] * 17
    first = driver.turn("t1", prompt, 4)
    driver.run()
    driver.submit("big", [7] * 46, 1)
    driver.run()
    driver.hold_kv = True
    waiting = driver.turn("t2", [1, 2, 3], 4)
    driver.run()
    assert driver.engine.snapshot().waking == 1
    told = driver.turn("t3", [9] * 8, 4, **fields)
    driver.run()
    driver.hold_kv = False
    while driver.kv.held:
        driver.answer_kv()
    driver.run()
    assert waiting.end is not None
    assert waiting.end.reason is Reason.SUPERSEDED
    assert all(request.state is not RequestState.WAITING_KV for request in driver.engine.core.requests.all())
    context = {"another root": [], "a part of it": (prompt + first.ids)[:5], "without its output": prompt}[name]
    assert told.ids == expected([*context, *[9] * 8], 4)
    assert told.end is not None
    assert told.end.cached_tokens <= len(context)
