"""What befalls a cluster in a chaos run: who is killed, frozen, drained or added, and when, all from a seed."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.e2e.chaos_ledger import Ledger
from tests.e2e.chaos_rig import Rig, send
from tests.e2e.hold_thread import Held, Refused
from tests.e2e.raw_http import RawClient

LOOK_S = 3.0
"""How long the cluster has to say who its workers are."""
ADD_TRIES = 3
KINDS: dict[str, float] = {
    "worker killed": 5,
    "worker frozen, short": 3,
    "worker frozen, long": 2,
    "worker stuck": 2,
    "ingress killed": 3,
    "proxy killed": 1,
    "pool killed": 2,
    "store killed": 2,
    "controller killed": 1,
    "scaled": 4,
    "node killed": 1.5,
    "ingress frozen": 1,
    "pool frozen": 1,
    "cut off, short": 1.5,
    "cut off, long": 1.5,
    "cut off, given up": 1,
}
"""How often each comes, relative to the others."""
FREEZES_S = {"ingress": (0.3, 6.0), "pool": (0.3, 6.0)}
CUTS_S = {"short": (0.2, 0.7), "long": (1.3, 2.0), "given up": (3.5, 5.0)}
"""For how long the far side is cut off, as shares of what counts as dead: shorter; longer, but not for Ray; and for so
long that Ray gives up the node, too."""


@dataclass(frozen=True)
class Blow:
    """`pick`: from 0 to 1, whom it hits. `length`: from 0 to 1, for how long."""

    at_s: float
    kind: str
    pick: float
    length: float


def blows(rng: random.Random, seconds: float, pause_s: float, nodes: bool, parted: bool = False) -> list[Blow]:
    """One of each kind at first, in some order, then as they come; `pause_s` between two, on average."""
    out = ({"node killed"} if not nodes else set()) | ({kind for kind in KINDS if "cut off" in kind and not parted})
    kinds = {kind: weight for kind, weight in KINDS.items() if kind not in out}
    order = list(kinds)
    rng.shuffle(order)
    found: list[Blow] = []
    at_s = pause_s / 2
    while at_s < seconds:
        kind = order.pop() if order else rng.choices(list(kinds), list(kinds.values()))[0]
        found.append(Blow(at_s, kind, rng.random(), rng.random()))
        at_s += pause_s * rng.uniform(0.5, 1.5)
    return found


class Fate:
    """`dead_s`: after how long a silent worker counts as dead. `most`: workers there may be."""

    def __init__(self, rig: Rig, ledger: Ledger, http: RawClient, clients: set[str], dead_s: float, most: int) -> None:
        self.rig = rig
        self.ledger = ledger
        self._http = http
        self._clients = clients
        self._dead_s = dead_s
        self._most = most
        self._ids: dict[int, str] = {}
        """Workers by their process."""
        self._loops: dict[int, int] = {}
        """Their loops' threads, likewise."""
        self._held: list[Held] = []
        self._healed_at = 0.0
        self._later: set[asyncio.Task[None]] = set()
        self._strike: dict[str, Callable[[Blow], Awaitable[bool]]] = {
            "worker killed": self._kill_worker,
            "worker frozen, short": self._freeze,
            "worker frozen, long": self._freeze,
            "worker stuck": self._hold,
            "ingress frozen": self._freeze_process,
            "pool frozen": self._freeze_process,
            **{f"cut off, {length}": self._cut_off for length in CUTS_S},
            "scaled": self._scale,
            "node killed": self._kill_node,
        }

    async def run(self, plan: list[Blow]) -> None:
        """Everything in its time; what was late moves the rest, of which as much is done as the time allows. Then
        nobody is frozen any more, and all nodes are there."""
        began_at = time.monotonic()
        late_s = 0.0
        for blow in plan:
            wait_s = began_at + late_s + blow.at_s - time.monotonic()
            late_s += max(0.0, -wait_s)
            if late_s + blow.at_s > plan[-1].at_s:
                break
            await asyncio.sleep(max(0.0, wait_s))
            if not await self._strike.get(blow.kind, self._kill_process)(blow):
                self.ledger.skipped[blow.kind] += 1
        await asyncio.gather(*self._later)
        for held in self._held:
            held.release()
        self.rig.thaw()

    async def settle(self, count: int, within_s: float) -> bool:
        """Whether as many workers as should be are ready in time."""
        give_up_at = time.monotonic() + within_s
        while time.monotonic() < give_up_at:
            if await self._scaled(count) and [row["state"] for row in await self._rows()] == ["ready"] * count:
                return True
            await asyncio.sleep(0.5)
        return False

    # -- what befalls ----------------------------------------------------------------------------------------------

    async def _kill_process(self, blow: Blow) -> bool:
        """Of the kind that the blow's name begins with; every client may notice."""
        pids = self.rig.pids(blow.kind.split()[0])
        if not pids or not send(_picked(pids, blow), signal.SIGKILL):
            return False
        self.ledger.struck(blow.kind, set(self._clients))
        return True

    async def _kill_worker(self, blow: Blow) -> bool:
        pid = await self._worker(blow)
        if pid is None or not send(pid, signal.SIGKILL):
            return False
        self.ledger.struck(blow.kind, self.ledger.owned_by(self._ids.get(pid, "")))
        return True

    async def _freeze(self, blow: Blow) -> bool:
        """For less than what counts as dead, or for so long that it wakes up in a world that has gone on."""
        pid = await self._worker(blow)
        if pid is None or not send(pid, signal.SIGSTOP):
            return False
        shares = (0.1, 0.7) if blow.kind.endswith("short") else (1.3, 2.0)
        length_s = self._dead_s * _between(shares, blow.length)
        self.ledger.struck(blow.kind, self.ledger.owned_by(self._ids.get(pid, "")))
        self._after(length_s, lambda: send(pid, signal.SIGCONT))
        return True

    async def _hold(self, blow: Blow) -> bool:
        """Its loop stands still from now on, in the middle of a step, while it answers the pool."""
        pid = await self._worker(blow)
        thread = self._loops.get(pid or 0, 0)
        try:
            self._held.append(await asyncio.to_thread(Held, thread))
        except Refused as why:
            self.ledger.say(f"could not be held: {why}")
            return False
        self.ledger.struck(blow.kind, self.ledger.owned_by(self._ids.get(pid or 0, "")))
        return True

    async def _freeze_process(self, blow: Blow) -> bool:
        """For a while; every client may notice."""
        what = blow.kind.split()[0]
        pids = self.rig.pids(what)
        if not pids or not send(pid := _picked(pids, blow), signal.SIGSTOP):
            return False
        self.ledger.struck(blow.kind, set(self._clients))
        self._after(_between(FREEZES_S[what], blow.length), lambda: send(pid, signal.SIGCONT))
        return True

    async def _cut_off(self, blow: Blow) -> bool:
        """The far side, with all who are there. One cut at a time."""
        if time.monotonic() < self._healed_at:
            return False
        length_s = self._dead_s * _between(CUTS_S[blow.kind.removeprefix("cut off, ")], blow.length)
        far = {self._ids.get(pid, "") for pid in self.rig.pids("worker") if self.rig.is_far(pid)}
        self.rig.networks.cut()
        self._healed_at = time.monotonic() + length_s
        self.ledger.struck(blow.kind, set().union(*(self.ledger.owned_by(worker) for worker in far)))
        self._after(length_s, self.rig.networks.heal)
        return True

    async def _scale(self, blow: Blow) -> bool:
        count = 1 + int(blow.pick * self._most)
        if not await self._scaled(count):
            return False
        self.ledger.struck(blow.kind, set(self._clients))
        return True

    async def _kill_node(self, blow: Blow) -> bool:
        """But for the last one; and add another a while later."""
        if len(self.rig.nodes) < 2:
            return False
        index = int(blow.pick * len(self.rig.nodes))
        self.ledger.struck(blow.kind, set(self._clients))
        await asyncio.to_thread(self.rig.kill_node, index)
        self._after(2.0 + 6.0 * blow.length, self._add_node)
        return True

    def _add_node(self) -> None:
        """Takes seconds; runs beside the clients. On a machine that is busy, Ray may not see it come in time."""
        if not any(self._try_adding() for _ in range(ADD_TRIES)):
            self.ledger.say("goes on with a node less")

    def _try_adding(self) -> bool:
        try:
            self.rig.add_node()
        except Exception as error:  # Ray knows no narrower one for it.
            self.ledger.say(f"a node could not be added: {error}")
            return False
        self.ledger.say("node added")
        return True

    # -- plumbing --------------------------------------------------------------------------------------------------

    async def _worker(self, blow: Blow) -> int | None:
        """One that clients have to do with, if there is any."""
        await self._rows()
        pids = self.rig.pids("worker")
        used = [pid for pid in pids if self.ledger.owned_by(self._ids.get(pid, ""))]
        return _picked(used or pids, blow) if pids else None

    async def _rows(self) -> list[dict[str, Any]]:
        """Workers, as the cluster tells; none while it cannot."""
        try:
            answer = await asyncio.wait_for(self._http.call("GET", "/v1/stats"), LOOK_S)
            rows: list[dict[str, Any]] = answer.tree["workers"] if answer.status == 200 else []
        except Exception as error:  # Whatever it is: this one is being killed just now.
            self.ledger.errors[f"stats: {type(error).__name__}"] += 1
            return []
        self._ids |= {row["pid"]: row["id"] for row in rows if "pid" in row}
        self._loops |= {row["pid"]: row["loop"]["thread"] for row in rows if "loop" in row}
        return rows

    async def _scaled(self, count: int) -> bool:
        try:
            await asyncio.to_thread(self.rig.scale, count)
        except Exception as error:  # Serve raises many kinds while the pool or its controller starts anew.
            self.ledger.say(f"could not be scaled: {type(error).__name__}")
            return False
        return True

    def _after(self, seconds: float, act: Callable[[], object]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(act)

        self._later.add(asyncio.create_task(wait()))


def _picked(pids: list[int], blow: Blow) -> int:
    return pids[int(blow.pick * len(pids))]


def _between(bounds: tuple[float, float], share: float) -> float:
    return bounds[0] + share * (bounds[1] - bounds[0])
