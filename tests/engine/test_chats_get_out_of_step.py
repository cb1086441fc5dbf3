"""Why a step with replies in it takes less than half of its tokens from prompts: chats in virtual time, where a step
costs what one of the fused CPU step's was measured to (fixed, per prompt token, per reply)."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import pytest

from tests.engine.driver import Driver, Told

CHATS, TURNS, PROMPT, REPLY = 8, 4, 200, 64
FIXED_S, PROMPT_TOKEN_S, REPLY_S, CLIENT_S = 0.009, 0.00078, 0.0005, 0.02
STEP_TOKENS = 256


@dataclass
class Chat:
    """One client: its next turn arrives `CLIENT_S` after it had its reply."""

    number: int
    arrives_at: float
    turns: int = 0
    told: Told | None = None
    waits: list[float] = field(default_factory=list)

    def look(self, driver: Driver) -> None:
        """See what has come, and send what is due."""
        if self.told is not None:
            if self.told.ids and len(self.waits) < self.turns:
                self.waits.append(driver.now - self.arrives_at)
            if self.told.end is not None:
                self.told, self.arrives_at = None, driver.now + CLIENT_S
        if self.told is None and self.turns < TURNS and self.arrives_at <= driver.now:
            first = 1 + self.number * TURNS + self.turns
            prompt = [first, *((first * 7 + place) % 256 for place in range(PROMPT - 1))]
            self.told = driver.submit(f"{self.number}/{self.turns}", prompt, REPLY)
            self.turns += 1


def held(mixed_prefill_tokens: int) -> tuple[float, float]:
    """(median seconds to the first token, tokens of replies per second)."""
    sizes = {"page_size": 16, "kv_tokens": 16384, "max_context": 512}
    driver = Driver(**sizes, max_step_tokens=STEP_TOKENS, mixed_prefill_tokens=mixed_prefill_tokens, prefix_cache=False)
    chats = [Chat(number, arrives_at=number / 1000) for number in range(CHATS)]
    while any(chat.told or chat.turns < TURNS for chat in chats):
        for chat in chats:
            chat.look(driver)
        driver.tick()
        plan = driver.launch()
        if plan is None:
            driver.now += CLIENT_S / 20
            continue
        prompt = sum(item.count for item in plan.items)
        driver.now += FIXED_S + prompt * PROMPT_TOKEN_S + len(plan.decodes) * REPLY_S
        driver.commit()
    waits = [wait for chat in chats for wait in chat.waits]
    assert len(waits) == CHATS * TURNS
    return median(waits), CHATS * TURNS * REPLY / driver.now


def test_chats_that_began_together_get_out_of_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """P7: they wait far less for each other's prompts, at next to no cost in throughput."""
    monkeypatch.setattr("tests.engine.driver.check", lambda engine: None)  # It would take nine tenths of the time.
    wait, rate = held(STEP_TOKENS * 7 // 16)
    together, best = held(0)
    assert wait < 0.75 * together, (wait, together)
    assert rate > 0.97 * best, (rate, best)
