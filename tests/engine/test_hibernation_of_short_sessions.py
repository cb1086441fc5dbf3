"""A session that does not fill a page yet has nothing to hibernate (rule K7)."""

from __future__ import annotations

import pytest

from tests.engine.driver import Driver


@pytest.mark.timeout(10)
def test_a_session_shorter_than_a_page_does_not_stop_the_worker() -> None:
    """K7, I1: it is passed over, and others are copied."""
    driver = Driver(page_size=16, kv_tokens=160, max_step_tokens=64, hibernate_below=1.0)
    for name, length in (("short", 3), ("long", 40)):
        driver.open(name)
        driver.turn(f"{name}-1", range(length), 2, session_id=name)
        driver.run()
    assert driver.info("short").hibernated_tokens == 0
    assert driver.info("long").hibernated_tokens == 32
