"""What clients do with the turns of a session in a storm, each move with the rules that it tries to break."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.e2e.answers import outcome_of, text_of, usage_of
from tests.e2e.raw_http import Leaving
from tests.e2e.storm import Driver, Turn, unique


async def plain(driver: Driver) -> None:
    """K1, S1: a turn that nothing disturbs."""
    turn = driver.turn()
    await driver.send(turn)
    outcome = outcome_of(turn.answer)
    if outcome != "length":
        if outcome != "queue_full" and not driver.weather.losses:
            driver.fault(f"{turn.rid}: an undisturbed turn ended {outcome} {turn.answer.body[:200]!r}")
        await driver.resolve([turn])
        return
    cached = usage_of(turn.answer)["prompt_tokens_details"]["cached_tokens"]
    total = {len(head) for head in driver.heads}
    after = driver.judge(turn, driver.heads)
    warm = driver.undisturbed and not driver.weather.pressure and not driver.weather.losses
    if warm and len(total) == 1 and cached not in (max(total), max(total) - 1):
        driver.fault(f"{turn.rid}: {cached} cached of {total}")
    driver.heads = unique(after)
    driver.undisturbed, driver.unheard = True, []
    if len(driver.heads) == 1:
        driver.nodes[turn.rid] = driver.heads[0]


async def left(driver: Driver) -> None:
    """A1, K2: a client that leaves at a random time."""
    turn = driver.turn(driver.rng.choice([3, 20, 60]))
    reset = driver.rng.random() < 0.5
    leave = Leaving(driver.rng.choice([0, 0.01, 0.05, 0.2, 0.5]) * driver.rng.random(), reset)
    if driver.rng.random() < 0.4:
        leave = Leaving(0, reset, after_events=driver.rng.randint(1, 6))
    await driver.send(turn, leave)
    await driver.resolve([turn])


async def crowd(driver: Driver) -> None:
    """S5, S6: several turns at once, some of whose clients leave."""
    turns = [driver.turn(driver.rng.choice([2, 8, 30])) for _ in range(3)]
    sends = []
    for turn in turns:
        busy = driver.rng.choice(["queue", "supersede", "reject"])
        leave = Leaving(driver.rng.random() * 0.3, driver.rng.random() < 0.5) if driver.rng.random() < 0.3 else None
        sends.append(_later(driver.rng.random() * 0.2, driver.send, turn, leave, {"on_busy": busy}))
    await asyncio.gather(*sends)
    await driver.resolve(turns)


async def aborted(driver: Driver) -> None:
    """A2 to A7: an explicit abort, by one of its selectors; the next turn runs at once."""
    turn = driver.turn(80)
    sending = asyncio.create_task(driver.send(turn))
    await asyncio.sleep(driver.rng.random() * 0.4)
    selector = driver.rng.choice([{"rid": turn.rid}, {"session": driver.name}, {"prefix": f"{driver.name}/"}])
    answer = await driver.weather.client.call("POST", "/v1/aborts", selector)
    if answer.status != 200:
        driver.fault(f"abort {selector}: {answer.status} {answer.body[:200]!r}")
    elif {hit["rid"] for hit in answer.tree["hit"]} - {turn.rid}:
        driver.fault(f"abort {selector} hit {answer.tree['hit']}")
    await sending
    if outcome_of(turn.answer) == "abort":
        await plain(driver)
    else:
        await driver.resolve([turn])


async def timed(driver: Driver) -> None:
    """C1: clocks of a request."""
    turn = driver.turn(40)
    clock = driver.rng.choice(["deadline_s", "waiting_timeout_s", "running_timeout_s"])
    await driver.send(turn, **{clock: driver.rng.choice([0.01, 0.1, 0.3])})
    await driver.resolve([turn])


async def repeated(driver: Driver) -> None:
    """T2: a turn sent again, after its end or at the same instant."""
    turn = driver.turn()
    twin = turn.twin()
    if driver.rng.random() < 0.5:
        await asyncio.gather(driver.send(turn), driver.send(twin))
    else:
        await driver.send(turn)
        await driver.send(twin)
    outcomes = sorted(map(outcome_of, (turn.answer, twin.answer)))
    if outcomes == ["length", "length"] and text_of(turn.answer) != text_of(twin.answer):
        driver.fault(f"{turn.rid}: two answers of one turn differ")
    await driver.resolve([turn if outcome_of(turn.answer) == "length" else twin])


async def branched(driver: Driver) -> None:
    """S3: a branch from a turn that is known, with the options of trees."""
    if not driver.nodes or driver.mode == "streaming":
        await plain(driver)
        return
    parent = driver.rng.choice(list(driver.nodes))
    base, options = driver.nodes[parent], {}
    if driver.rng.random() < 0.4:
        options["offset"] = driver.rng.choice([1, -1, 7, -7, 10_000, -10_000])
    if driver.rng.random() < 0.3:
        options["replace"] = True
    turn = driver.turn()
    turn.named = True
    await driver.send(turn, session={"parent": parent, **options})
    if outcome_of(turn.answer) == "parent_unknown" and parent not in driver.nodes:
        return
    if outcome_of(turn.answer) != "length":
        known = {"session_busy", "queue_full", "worker_lost"} | ({"parent_unknown"} if len(driver.heads) > 1 else set())
        if outcome_of(turn.answer) not in known:
            driver.fault(f"{turn.rid}: from {parent} with {options}: {turn.answer.body[:200]!r}")
        await driver.resolve([turn])
        return
    if options.get("offset"):
        base = base[: options["offset"]]
    driver.heads = driver.judge(turn, [base])
    if options.get("replace"):
        driver.nodes = {}  # Which of them were descendants is not ours to know.
    driver.nodes[turn.rid] = driver.heads[0]
    driver.undisturbed, driver.unheard = False, []


async def closed(driver: Driver) -> None:
    """S9: a close in the middle of a turn, and the id opened again at once."""
    turn = driver.turn(driver.rng.choice([2, 40]))
    sending = asyncio.create_task(driver.send(turn))
    await asyncio.sleep(driver.rng.random() * 0.2)
    mode = driver.rng.choice(["graceful", "abort"])
    first, second = await asyncio.gather(
        *(driver.weather.client.call("DELETE", f"/v1/sessions/{driver.name}?mode={mode}") for _ in range(2))
    )
    if sorted((first.status, second.status)) != [200, 404] and not driver.weather.losses:
        driver.fault(f"closed twice: {first.status} {first.body[:200]!r}, {second.status} {second.body[:200]!r}")
    await driver.open(driver.rng.choice(["tree", "streaming"]))
    await sending
    await _arrived_late(driver, turn)
    await plain(driver)
    told = outcome_of(turn.answer)
    if told not in {"length", "abort", "session_unknown", "session_closing", "queue_full"} | driver.weather.bearable:
        driver.fault(f"{turn.rid}: {told} of a session that was closed ({mode})")


async def _arrived_late(driver: Driver, turn: Turn) -> None:
    """On a slow day the turn that was to meet the closing session meets the new one of its id, and is the first of
    that: nothing in it names the old one."""
    info = await driver.settled()
    driver.unheard = []
    if info is not None and info["head"] == turn.rid:
        driver.heads, driver.nodes = [turn.context([])], {turn.rid: turn.context([])}
        driver.weather.seen["turns that arrived after a close"] += 1
    if info is None or info["tokens"] != len(driver.heads[0]):
        driver.fault(f"{turn.rid}: in the session opened after it there are {info}")


async def _later(after_s: float, what: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    await asyncio.sleep(after_s)
    return await what(*args)
