"""A storm over a running server with the toy runner.

python -m tests.e2e.storm_run --port 8000 --sessions 8 --moves 20 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.e2e.raw_http import RawClient
from tests.e2e.storm import Driver, Weather
from tests.e2e.storm_moves import LONGEST, MOVES, closed, plain

REST_S = 10.0
LOSS_PAUSE_S = 6.0
"""After a move that failed because something was killed: longer than a dead ingress keeps its requests."""
_METRIC = re.compile(r"^(remora_requests_\w+?)(?:_total)?(?:{[^}]*})? (\S+)$", re.MULTILINE)
Disturbance = Callable[[Weather], Awaitable[None]]


async def storm(weather: Weather, sessions: int, moves: int, disturb: Disturbance | None = None) -> dict[str, Any]:
    """Let it rage; then let it rest, and see that nothing is left of it. Returns the figures at four moments."""
    figures = {"before": await census(weather)}
    prefix = f"storm-{time.time_ns() // 10**6}"  # Not from the seed: an earlier storm may have left sessions.
    drivers = [Driver(weather, f"{prefix}-{number}") for number in range(sessions)]
    helper = asyncio.create_task(disturb(weather)) if disturb else None
    await asyncio.gather(*(_drive(driver, moves) for driver in drivers))
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
    for name, worker in figures["all closed"]["workers"].items():
        if worker["pages"]["session_held"] or worker["sessions"]:
            weather.fault(f"{name} holds {worker} with every session closed")
    return figures


async def _drive(driver: Driver, moves: int) -> None:
    await driver.open(driver.rng.choice(["tree", "tree", "streaming"]))
    for _ in range(moves):
        move = driver.rng.choice(MOVES) if len(driver.heads[0]) < LONGEST else closed
        driver.weather.seen[f"move {move.__name__}"] += 1
        try:
            await move(driver)
        except Exception as error:
            if not driver.weather.losses:
                driver.fault(f"{move.__name__}: {error!r}")
            await asyncio.sleep(LOSS_PAUSE_S)
            await driver.resolve([])


async def rest(weather: Weather) -> dict[str, Any]:
    """The census once nothing lives any more; a fault when that never comes."""
    deadline = time.monotonic() + REST_S
    while True:
        figures = await census(weather)
        wrong = unrest(figures)
        if not wrong:
            return figures
        if time.monotonic() > deadline:
            weather.fault("not at rest: " + "; ".join(wrong))
            return figures
        await asyncio.sleep(0.1)


def unrest(figures: dict[str, Any]) -> list[str]:
    """What is not as it must be when nobody wants anything (rules E6, K6)."""
    wrong = [f"ingress: {name} {figures[name]}" for name in ("open_requests", "in_flight") if figures[name]]
    if figures["received"] != figures["ended"]:
        wrong.append(f"ingress: {figures['received']} received, {figures['ended']} ended")
    for name, row in figures["workers"].items():
        wrong += [f"{name}: {key} {row[key]}" for key in ("waiting", "running", "live") if row[key]]
        if row["pages"]["request_owned"]:
            wrong.append(f"{name}: {row['pages']}")
        if sum(row["pages"].values()) != 2 * row["pages"]["total"]:
            wrong.append(f"{name}: pages do not add up {row['pages']}")
        if row["requests_received"] != row["ended"]:
            wrong.append(f"{name}: {row['requests_received']} received, {row['ended']} ended")
    return wrong


async def census(weather: Weather) -> dict[str, Any]:
    """Pages, requests, sessions and counters, as /v1/stats and /metrics have them."""
    stats = (await weather.client.call("GET", "/v1/stats")).tree
    metrics = (await weather.client.call("GET", "/metrics")).body.decode()
    counted = {"received": 0.0, "ended": 0.0, "in_flight": 0.0}
    for name, value in _METRIC.findall(metrics):
        key = name.removeprefix("remora_requests_")
        if key in counted:
            counted[key] += float(value)
    keys = ("pages", "waiting", "running", "live", "sessions", "requests_received")
    workers = {
        row["id"]: {**{key: row[key] for key in keys}, "ended": sum(end["count"] for end in row["ends"])}
        for row in stats["workers"]
        if "pages" in row
    }
    return {**counted, "open_requests": stats["ingress"]["open_requests"], "workers": workers}


def table(figures: dict[str, Any]) -> str:
    """The figures for people: one line per moment and worker, then the ingress."""
    columns = ("free", "prefix_only", "session_held", "request_owned")
    lines = [f"{'':<22}{'worker':<17}" + "".join(f"{name:>14}" for name in (*columns, "live", "sessions", "requests"))]
    for moment, at in figures.items():
        for name, row in at["workers"].items():
            cells = [*(row["pages"][column] for column in columns), row["live"], row["sessions"]]
            requests = f"{row['requests_received']}/{row['ended']}"
            lines.append(f"{moment:<22}{name:<17}" + "".join(f"{cell:>14}" for cell in (*cells, requests)))
        lines.append(f"{moment:<22}{'ingress':<17}{at['received']:.0f} received, {at['ended']:.0f} ended")
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
    print(f"seed {args.seed}:", ", ".join(f"{name} {count}" for name, count in sorted(weather.seen.items())))
    print(f"{len(weather.faults)} faults")
    return bool(weather.faults)


if __name__ == "__main__":
    raise SystemExit(main())
