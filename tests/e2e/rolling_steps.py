"""What an operator does to a cluster while clients use it, and what is seen of its workers meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.chaos_rig import Rig
from tests.e2e.raw_http import RawClient

LOOK_S = 0.1
PATIENCE_S = 180.0


@dataclass
class Step:
    """Something that was done. `least_ready`, `most_there`: workers seen meanwhile; `requests`: answered meanwhile."""

    name: str
    took_s: float = 0.0
    least_ready: int = 1_000
    most_there: int = 0
    requests: int = 0
    fault: str = ""


@dataclass
class Operator:
    """`answered()`: requests so far. `folder`: where the server's config file is."""

    rig: Rig
    http: RawClient
    folder: Path
    answered: Callable[[], int]
    steps: list[Step] = field(default_factory=list)
    workers: int = 1

    async def until_answered(self, requests: int) -> None:
        while self.answered() < requests:  # noqa: ASYNC110 - clients tell nobody
            await asyncio.sleep(LOOK_S)

    async def scale(self, count: int) -> None:
        least = min(self.workers, count)
        before, self.workers = self.workers, count

        def reached(stats: Mapping[str, Any]) -> bool:
            return _ready(stats) == len(stats["workers"]) == count

        async def ask() -> None:
            await asyncio.to_thread(self.rig.scale, count)

        await self._do(f"scale {before} -> {count}", ask, reached, least, max(before, count))

    async def redeploy(self, max_running: int) -> None:
        """The same application with other settings of its workers: pool and ingress are replaced, too."""

        def reached(stats: Mapping[str, Any]) -> bool:
            new = [row.get("max_running") == max_running for row in stats["workers"]]
            return all(new) and _ready(stats) == len(new) == self.workers

        async def ask() -> None:
            await asyncio.to_thread(deploy_anew, self.folder, self.workers, max_running)

        await self._do("deploy with new settings", ask, reached, self.workers, self.workers + 1)

    async def rollout(self) -> None:
        """`remora rollout`, until it says that it is done."""
        before = {row["id"] for row in (await self._stats())["workers"]}

        def reached(stats: Mapping[str, Any]) -> bool:
            ids = {row["id"] for row in stats["workers"]}
            return not ids & before and _ready(stats) == len(ids) == self.workers

        async def ask() -> None:
            from cluster.cli import main

            code = await asyncio.to_thread(main, ["rollout", "--url", self.rig.server.url])
            assert code == 0, f"remora rollout: exit code {code}"

        await self._do("remora rollout", ask, reached, self.workers, self.workers + 1)

    async def _do(
        self, name: str, ask: Callable[[], Any], reached: Callable[[Mapping[str, Any]], bool], least: int, most: int
    ) -> None:
        """Ask for it, and look until it is so. A fault when fewer workers than `least` were ready meanwhile, or more
        than `most` there."""
        step = Step(name)
        self.steps.append(step)
        began_at, before = time.monotonic(), self.answered()
        asking = asyncio.ensure_future(ask())
        while True:
            stats = await self._stats()
            step.least_ready = min(step.least_ready, _ready(stats))
            step.most_there = max(step.most_there, len(stats["workers"]))
            if asking.done() and reached(stats):
                break
            if time.monotonic() - began_at > PATIENCE_S:
                step.fault = f"not done after {PATIENCE_S:.0f} s: {stats['pool']}"
                break
            await asyncio.sleep(LOOK_S)
        await asking
        step.took_s, step.requests = time.monotonic() - began_at, self.answered() - before
        if not step.fault and (step.least_ready < least or step.most_there > most):
            step.fault = (
                f"{step.least_ready} ready at least and {step.most_there} there at most, not {least} and {most}"
            )

    async def _stats(self) -> Mapping[str, Any]:
        """Of a pool that knows its workers: one that has just been started may not have heard from them yet."""
        while True:
            answer = await self.http.call("GET", "/v1/stats")
            if answer.status == 200:
                stats: Mapping[str, Any] = answer.tree
                if (
                    all(row["state"] != "starting" or "pages" not in row for row in stats["workers"])
                    and stats["workers"]
                ):
                    return stats
            await asyncio.sleep(LOOK_S)


def _ready(stats: Mapping[str, Any]) -> int:
    return sum(row["state"] == "ready" for row in stats["workers"])


def deploy_anew(folder: Path, workers: int, max_running: int) -> None:
    """Blocks until Serve says that the application runs."""
    from ray import serve

    from cluster.app import build_app
    from cluster.cli_serve import located, with_absolute_files
    from cluster.located import APP_NAME
    from configs import load

    settings = {"workers.count": workers, "engine.max_running": max_running}
    config = located(with_absolute_files(load(folder / "config.yaml", settings)))
    serve.run(build_app(config), name=APP_NAME, route_prefix="/")
