"""A cluster under random use and random misfortune, on simulated time: what is promised holds for every seed.

REMORA_SIM_SEEDS says how many seeds to run (a run of minutes is worth it after a change of the engine), REMORA_SIM_SEED
which one to begin with: a failure names its seed, and the same seed fails in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from actors.messages import OnBusy, SessionMode
from actors.ports import NoWorker
from actors.records import SessionExists, SessionUnknown, TurnUnknown
from tests.sim.cluster import SimCluster, prompt_of

SEEDS = int(os.environ.get("REMORA_SIM_SEEDS", "12"))
FIRST_SEED = int(os.environ.get("REMORA_SIM_SEED", "0"))
OPERATIONS = 150
SESSIONS = ("s1", "s2", "s3", "s4", "s5", "s6")


class Chaos:
    """One seed's worth of operations, at most three killed workers among them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        pick = self.random.choice
        self.cluster = SimCluster(
            workers=3,
            ingresses=2,
            seed=seed,
            depth=pick((0, 1)),
            page_size=pick((1, 4, 16)),
            kv_tokens=pick((160, 320, 1024)),
            max_context=150,
            max_step_tokens=pick((8, 32)),
            max_running=pick((2, 8)),
            patience_s=pick((2.0, 6.0)),
            replace_dead=True,
        )
        self.names = 0
        self.killed = 0

    def play(self) -> None:
        self.cluster.run(0.3)
        for _ in range(3):
            self.open()
        verbs: list[tuple[int, Callable[[], None]]] = [
            (30, self.turn),
            (10, self.plain),
            (6, self.again),
            (6, self.disconnect),
            (5, self.abort),
            (10, self.open),
            (1, self.close),
            (3, self.fork),
            (3, self.rollback),
            (2, self.freeze),
            (3, self.thaw),
            (1, self.kill),
            (3, self.store_fault),
            (2, self.store_pace),
            (3, self.weather),
            (2, self.cut),
            (2, self.mend),
            (1, self.long_pause),
        ]
        weights = [weight for weight, _ in verbs]
        for _ in range(OPERATIONS):
            self.random.choices(verbs, weights)[0][1]()
            self.cluster.run(self.random.choice((0.0, 0.0, 0.005, 0.02, 0.1)))
        self.cluster.finish()

    # -- clients ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        mode = self.random.choice((SessionMode.STREAMING, SessionMode.STREAMING, SessionMode.TREE))
        idle = self.random.choice((None, None, 1.0, 3.0))
        with suppress(SessionExists, NoWorker):
            self.cluster.open(self.random.choice(SESSIONS), mode, idle_s=idle)

    def close(self) -> None:
        self.cluster.close(self.random.choice(SESSIONS), abort=self.random.random() < 0.5)

    def fork(self) -> None:
        source, session_id = self.random.choice(SESSIONS), self.random.choice(SESSIONS)
        turn = self.random.choice([None, *(self.cluster.turns(source) or [])])
        with suppress(SessionExists, SessionUnknown, TurnUnknown, NoWorker):
            self.cluster.fork(session_id, source, turn)

    def rollback(self) -> None:
        session_id = self.random.choice(SESSIONS)
        rids = self.cluster.turns(session_id)
        if rids:
            self.cluster.rollback(session_id, self.random.choice(rids[-4:]))

    def plain(self) -> None:
        self._request({})

    def turn(self) -> None:
        session_id = self.random.choice(SESSIONS)
        on_busy = self.random.choices(list(OnBusy), (5, 3, 2))[0]
        fields: dict = {"session_id": session_id, "on_busy": on_busy}
        rids = self.cluster.turns(session_id)
        if rids and self.random.random() < 0.2:
            fields["parent"] = self.random.choice([None, *rids[-4:]])
            fields["replace"] = self.random.random() < 0.3
        self._request(fields)

    def again(self) -> None:
        """A client that did not like its answer, or never got one, sends the same turn again."""
        turns = [call for call in self.cluster.calls.values() if call.turn is not None and call.over]
        if not turns:
            return
        old = self.random.choice(turns)
        self.names += 1
        self.cluster.request(
            f"c{self.names}",
            old.submit.input_ids,
            old.submit.sampling.max_tokens or 0,
            via=self._ingress(),
            rid=old.submit.rid,
            **(old.turn or {}),
        )

    def _request(self, fields: dict) -> None:
        self.names += 1
        name = f"c{self.names}"
        if self.random.random() < 0.1:
            fields[self.random.choice(("deadline_s", "waiting_timeout_s", "running_timeout_s"))] = 0.15
        prompt = prompt_of(name, self.random.choice((1, 3, 8, 30)))
        fields["priority"] = self.random.choice((0, 0, 1))
        self.cluster.request(name, prompt, self.random.choice((1, 4, 12, 40)), via=self._ingress(), **fields)

    def disconnect(self) -> None:
        ingress = self.cluster.ingresses[self._ingress()]
        calls = [name for name, call in ingress.calls.items() if not call.over]
        if calls:
            ingress.disconnect(self.random.choice(calls))

    def abort(self) -> None:
        ingress = self.cluster.ingresses[self._ingress()]
        if self.random.random() < 0.3:
            session_id = self.random.choice(SESSIONS)
            ingress.abort(session_id, session_id=session_id)
        else:
            rid = f"c{self.random.randint(max(1, self.names - 5), self.names + 2)}"
            ingress.abort(rid, rids=(rid,))

    # -- misfortunes -----------------------------------------------------------------------------------------------

    def freeze(self) -> None:
        present = [worker for worker in self.cluster.workers.values() if worker.present]
        if len(present) > 1:
            self.random.choice(present).freeze()

    def thaw(self) -> None:
        for worker in self.cluster.workers.values():
            if worker.frozen and worker.alive:
                worker.thaw()

    def kill(self) -> None:
        alive = [name for name, worker in self.cluster.workers.items() if worker.alive]
        if self.killed < 3 and alive:
            self.killed += 1
            self.cluster.kill_worker(self.random.choice(alive))

    def store_fault(self) -> None:
        self.cluster.store.faults.append(self.random.choice(("fail", "ambiguous")))

    def store_pace(self) -> None:
        for worker in self.cluster.workers.values():
            worker.store_delay_s = self.random.choice((0.002, 0.02, 0.3))

    def weather(self) -> None:
        """Chances of loss and doubling, and slow links, on one line."""
        link = self.cluster.network.link(*self._line())
        link.loss = self.random.choice((0.0, 0.05, 0.3))
        link.duplicate = self.random.choice((0.0, 0.2))
        link.high = self.random.choice((0.003, 0.05))

    def cut(self) -> None:
        self.cluster.partition(*self._line())

    def mend(self) -> None:
        for worker in self.cluster.workers:
            for ingress in self.cluster.ingresses:
                self.cluster.partition(ingress, worker, cut=False)

    def long_pause(self) -> None:
        self.cluster.run(self.random.choice((1.0, 2.5)))

    def _ingress(self) -> str:
        return self.random.choice(list(self.cluster.ingresses))

    def _line(self) -> tuple[str, str]:
        line = self._ingress(), self.random.choice(list(self.cluster.workers))
        return line if self.random.random() < 0.5 else line[::-1]


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_promises_hold_whatever_happens(seed: int) -> None:
    """E1, E5, S2, S3, S12, T1, T2, T3, T6, K6: every call ends once; what was acknowledged is stored once, as it was
    told and as its history gives; and nothing is left anywhere."""
    Chaos(seed).play()


def test_one_seed_is_one_story() -> None:
    """The whole cluster is deterministic: a seed that fails will fail again."""
    stories = []
    for _ in range(2):
        chaos = Chaos(FIRST_SEED)
        chaos.play()
        stories.append(chaos.cluster.log)
    assert stories[0] == stories[1]
