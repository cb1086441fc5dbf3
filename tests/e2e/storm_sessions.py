"""What clients do with whole sessions in a storm: fork, roll back, open by a first turn."""

from __future__ import annotations

from tests.e2e.answers import outcome_of
from tests.e2e.storm import Driver
from tests.e2e.storm_moves import left, plain


async def forked(driver: Driver) -> None:
    """S12: a session that begins with what another had; what it does is nothing to the other."""
    if not driver.nodes:
        await plain(driver)
        return
    turn = driver.rng.choice(list(driver.nodes))
    driver.count += 1
    twig = Driver(driver.weather, f"{driver.name}-twig-{driver.count}")
    body = {"id": twig.name, "turn": turn}
    answer = await driver.weather.client.call("POST", f"/v1/sessions/{driver.name}/fork", body)
    if answer.status != 200:
        if not driver.weather.losses:
            driver.fault(f"fork at {turn}: {answer.status} {answer.body[:200]!r}")
        return
    twig.mode, twig.heads, twig.nodes = driver.mode, [driver.nodes[turn]], {turn: driver.nodes[turn]}
    if answer.tree["tokens"] != len(twig.heads[0]):
        driver.fault(f"fork at {turn}: {answer.tree['tokens']} tokens, not {len(twig.heads[0])}")
    await plain(twig)
    if driver.rng.random() < 0.5:
        await left(twig)
    await _close(twig)


async def rolled_back(driver: Driver) -> None:
    """S12: back to an earlier turn; the next one goes on from there."""
    if not driver.nodes:
        await plain(driver)
        return
    turn = driver.rng.choice(list(driver.nodes))
    answer = await driver.weather.client.call("POST", f"/v1/sessions/{driver.name}/rollback", {"turn": turn})
    if answer.status != 200:
        if not driver.weather.losses:
            driver.fault(f"rollback to {turn}: {answer.status} {answer.body[:200]!r}")
        await driver.resolve([])
        return
    driver.heads, driver.nodes = [driver.nodes[turn]], {turn: driver.nodes[turn]}
    driver.undisturbed, driver.unheard = False, []
    if (answer.tree["head"], answer.tree["tokens"]) != (turn, len(driver.heads[0])):
        driver.fault(f"rollback to {turn}: {answer.body[:300]!r}, not {len(driver.heads[0])} tokens")
    await plain(driver)


async def created(driver: Driver) -> None:
    """S14: a session opened by its first turn."""
    driver.count += 1
    young = Driver(driver.weather, f"{driver.name}-young-{driver.count}")
    young.heads, young.mode = [[]], driver.rng.choice(["tree", "streaming"])
    turn = young.turn()
    await young.send(turn, session={"create": True, "mode": young.mode})
    if outcome_of(turn.answer) == "length":
        young.heads, young.unheard = young.judge(turn, [[]]), []
        await plain(young)
        await _close(young)
        return
    if outcome_of(turn.answer) not in {"queue_full"} | driver.weather.bearable:
        young.fault(f"opening by a turn: {turn.answer.status} {turn.answer.body[:200]!r}")
    if await young.info() is not None:
        await _close(young)


async def _close(driver: Driver) -> None:
    answer = await driver.weather.client.call("DELETE", f"/v1/sessions/{driver.name}?mode=abort")
    if answer.status != 200 and not driver.weather.losses:
        driver.fault(f"could not be closed: {answer.status} {answer.body[:200]!r}")
