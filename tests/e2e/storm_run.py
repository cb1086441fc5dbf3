"""A storm over a running server with the toy runner.

python -m tests.e2e.storm_run --port 8000 --sessions 8 --moves 20 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from tests.e2e.census import Census, take
from tests.e2e.raw_http import RawClient
from tests.e2e.storm import Driver, Weather
from tests.e2e.storm_moves import aborted, branched, closed, crowd, left, plain, repeated, timed
from tests.e2e.storm_requests import cut, foretold, guided, nonsense, refused, stateless
from tests.e2e.storm_sessions import created, forked, rolled_back

REST_S = 20.0
LOSS_PAUSE_S = 6.0
"""After a move that failed because something was killed: longer than a dead ingress keeps its requests."""
MOVES = (plain, plain, plain, left, left, crowd, crowd, aborted, timed, repeated, branched, closed,
         stateless, stateless, guided, cut, refused, nonsense, foretold, forked, rolled_back, created)  # fmt: skip
Disturbance = Callable[[Weather], Awaitable[None]]


async def storm(
    weather: Weather,
    sessions: int,
    moves: int,
    disturb: Disturbance | None = None,
    *,
    requests: int | None = None,
) -> dict[str, Census]:
    """Let it rage for so many moves in each session, or until so many requests were sent; then let it rest, and see
    that nothing is left of it. Returns what was held at four moments."""
    figures = {"before": await take(weather.client)}
    prefix = f"storm-{time.time_ns() // 10**6}"  # Not from the seed: an earlier storm may have left sessions.
    drivers = [Driver(weather, f"{prefix}-{number}") for number in range(sessions)]
    helper = asyncio.create_task(disturb(weather)) if disturb else None
    await asyncio.gather(*(_drive(driver, moves, requests) for driver in drivers))
    if helper is not None:
        await helper
    figures["after the storm"] = await rest(weather)
    weather.losses = weather.pressure = False
    for driver in drivers:
        driver.undisturbed, driver.worker = False, None
        await plain(driver)
        await plain(driver)
    figures["a turn of each later"] = await rest(weather)
    for driver in drivers:
        answer = await weather.client.call("DELETE", f"/v1/sessions/{driver.name}")
        if answer.status != 200:
            driver.fault(f"could not be closed: {answer.status} {answer.body[:200]!r}")
    figures["all closed"] = await rest(weather)
    for wrong in figures["all closed"].closed():
        weather.fault(wrong)
    return figures


async def _drive(driver: Driver, moves: int, requests: int | None) -> None:
    weather = driver.weather
    await driver.open(driver.rng.choice(["tree", "tree", "streaming"]))
    done = 0
    while weather.sent < requests if requests is not None else done < moves:
        done += 1
        move = driver.rng.choice(MOVES) if len(driver.heads[0]) < weather.longest else closed
        weather.seen[move.__name__] += 1
        try:
            await move(driver)
        except Exception as error:
            if not weather.losses:
                driver.fault(f"{move.__name__}: {error!r}")
            await asyncio.sleep(LOSS_PAUSE_S)
            await _recover(driver)


async def _recover(driver: Driver) -> None:
    """Find out where the session stands, however long nobody answers."""
    while (error := await _unresolved(driver)) is not None:
        if not driver.weather.losses:
            driver.fault(f"nobody says where it stands: {error!r}")
        await asyncio.sleep(LOSS_PAUSE_S)


async def _unresolved(driver: Driver) -> Exception | None:
    try:
        await driver.resolve([])
    except Exception as error:
        return error
    return None


async def rest(weather: Weather) -> Census:
    """The census once nothing lives any more; a fault when that never comes."""
    deadline = time.monotonic() + REST_S
    while True:
        census = await take(weather.client)
        wrong = census.unrest()
        if not wrong:
            return census
        if time.monotonic() > deadline:
            weather.fault("not at rest: " + "; ".join(wrong))
            return census
        await asyncio.sleep(0.1)


def table(figures: dict[str, Census]) -> str:
    """The figures for people: one line per moment and worker, then the ingress."""
    columns = ("free or prefix pages", "session-held pages", "request-owned pages", "live", "sessions")
    lines = [f"{'':<22}{'':<17}" + "".join(f"{name:>22}" for name in (*columns, "received/ended"))]
    for moment, census in figures.items():
        for owner, ends in census.ends.items():
            cells = [census.held[owner].get(column, "") for column in columns]
            cells.append(f"{census.received[owner]}/{ends.total()}")
            lines.append(f"{moment:<22}{owner:<17}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--host", default="127.0.0.1")
    arguments.add_argument("--port", type=int, default=8000)
    arguments.add_argument("--sessions", type=int, default=8)
    arguments.add_argument("--moves", type=int, default=20)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--pressure", action="store_true", help="pages run short: KV of idle sessions is lost")
    args = arguments.parse_args()
    weather = Weather(RawClient(args.host, args.port), random.Random(args.seed), pressure=args.pressure)
    figures = asyncio.run(storm(weather, args.sessions, args.moves))
    print(table(figures))
    print(f"seed {args.seed}:", ", ".join(f"{name} {count}" for name, count in sorted(weather.answers.items())))
    print(f"{len(weather.faults)} faults")
    return bool(weather.faults)


if __name__ == "__main__":
    raise SystemExit(main())
