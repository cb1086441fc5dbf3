"""What a long life leaves behind: nothing that grows with the requests served (field case N14), and no turn that costs
more than the first (session case S03)."""

from __future__ import annotations

import gc
import sys

from actors.messages import OnBusy, Outcome
from tests.engine.driver import Driver

ROUNDS, PER_ROUND = 6, 150
QUIET_S = 40.0
"""Longer than a tombstone."""


def tables(driver: Driver) -> dict[str, int]:
    """Sizes of everything that the engine keeps, after a rest."""
    driver.tick(QUIET_S)
    core, stats = driver.engine.core, driver.engine.snapshot()
    return {
        "requests": len(core.requests),
        "sessions": len(core.sessions),
        "tombstones": len(core.tombstones),
        "ended": len(core.ended),
        "clocks": len(core.clocks),
        "images": len(core.images),
        "transfers": len(core.kv.transfers),
        "page tables": len(core.kv.tables()),
        "slots": len(core.kv.slots),
        "waiting": stats.waiting,
        "uncommitted": len(driver.engine.uncommitted),
        "free sessions": len(core.free_sessions),
    }


def a_mixed_round(driver: Driver, number: int) -> None:
    """Normal ones, refused ones, aborts in several stages, tenants with weights, deadlines, and sessions that close."""
    for index in range(PER_ROUND):
        key = f"{number}.{index}"
        prompt, kind = [number % 250, index % 250, 7], index % 6
        if kind == 0:
            driver.submit(key, prompt * 400, 4)
        elif kind == 1:
            driver.submit(key, prompt, 30, deadline_s=0.02)
        elif kind == 2:
            driver.submit(key, prompt, 6, tenant=f"tenant-{index % 3}", weight=1.0)
        elif kind == 3:
            driver.open(key, idle_timeout_s=5.0)
            driver.turn(f"{key}-1", prompt, 3, session_id=key)
            driver.turn(f"{key}-2", prompt, 3, session_id=key, on_busy=OnBusy.SUPERSEDE)
        elif kind == 4:
            driver.submit(key, prompt, 50)
            driver.step()
            driver.abort(rids=(key,))
        else:
            driver.abort(keys=(f"never-{key}",), rids=(f"not-{key}",))
            driver.submit(key, prompt, 2)
        driver.step()
    driver.run()


def forget(driver: Driver) -> None:
    """The driver remembers what it has heard; the engine must not."""
    assert all(told.end is not None for told in driver.told.values())
    for remembered in (driver.told, driver.sent, driver.replies, driver.store):
        remembered.clear()


def test_tables_and_memory_are_flat() -> None:
    """E1, I1, S8: field case N14 (the engine's part): at every rest all tables are as they were at the first, and host
    memory does not grow with the requests served."""
    driver = Driver(kv_tokens=256, max_context=256, max_running=4, max_waiting=20, hibernate_below=0.5)
    sizes, blocks = [], []
    for number in range(ROUNDS):
        a_mixed_round(driver, number)
        sizes.append(tables(driver))
        forget(driver)
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert all(size == sizes[0] for size in sizes), sizes
    assert sizes[0] == dict.fromkeys(sizes[0], 0)
    grown = (blocks[-1] - blocks[1]) / (PER_ROUND * (ROUNDS - 2))
    assert grown < 0.5, f"{grown:.2f} blocks stay for each request"


def test_late_turns_cost_what_early_ones_do() -> None:
    """S1, K1: session case S03, counted in tokens and steps and not in seconds: the last ten turns of 150 are computed
    from what is new, as the first ten are."""
    driver = Driver(page_size=64, kv_tokens=2048, max_context=2048)
    driver.open()
    costs = []
    for number in range(150):
        before = driver.engine.snapshot()
        told = driver.turn(f"t{number}", [number, 1, 2], 5)
        driver.run()
        assert told.end is not None
        assert told.end.outcome is Outcome.LENGTH
        after = driver.engine.snapshot()
        costs.append((after.prefill_tokens - before.prefill_tokens, after.steps - before.steps))
    assert costs[0] == (3, 5)
    assert set(costs[1:]) == {(4, 5)}, "the three that are new, and the last one sampled"
