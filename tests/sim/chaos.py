"""One seed of a cluster under random use and random misfortune, on simulated time, and what happened in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random

from actors.messages import Grammar, GrammarKind, OnBusy, SessionMode
from actors.ports import NoWorker
from actors.records import SessionExists, SessionUnknown, TurnUnknown
from tests.sim.cluster import SimCluster, prompt_of
from tests.sim.tally import tally
from tests.sim.worker import SimWorker

OPERATIONS = 150
SESSIONS = ("s1", "s2", "s3", "s4", "s5", "s6")
GRAMMARS = (
    Grammar(kind=GrammarKind.REGEX, text="[a-f]{2,8}"),
    Grammar(kind=GrammarKind.CHOICE, text='["yes", "no"]'),
    Grammar(kind=GrammarKind.EBNF, text="root ::= root"),
)


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
            kv_tokens=pick((160, 160, 320, 640)),
            max_context=150,
            max_step_tokens=pick((8, 32)),
            max_running=pick((2, 8)),
            patience_s=pick((2.0, 6.0)),
            forecast=pick((False, True)),
            hibernate_below=pick((0.0, 0.6, 1.0, 1.0)),
            replace_dead=True,
        )
        self.weights = pick(({}, {"t": 1.0, "u": 3.0, "v": 0.5}))
        self.names = 0
        self.killed = 0
        self.verbs = 0

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
            (2, self.close),
            (4, self.fork),
            (6, self.rollback),
            (3, self.burst),
            (3, self.come_back),
            (5, self.meddle),
            (2, self.freeze),
            (3, self.thaw),
            (1, self.kill),
            (1, self.drain),
            (3, self.store_fault),
            (2, self.store_pace),
            (3, self.kv_pace),
            (2, self.image_lost),
            (2, self.grammar_pace),
            (3, self.weather),
            (2, self.cut),
            (2, self.mend),
            (1, self.long_pause),
        ]
        weights = [weight for weight, _ in verbs]
        for _ in range(OPERATIONS):
            self.random.choices(verbs, weights)[0][1]()
            self.verbs += 1
            self.cluster.run(self.random.choice((0.0, 0.0, 0.005, 0.02, 0.1)))
        self.cluster.finish()

    def tally(self) -> Counter[str]:
        return tally(self.cluster) + Counter(verbs=self.verbs)

    # -- clients ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        mode = self.random.choice((SessionMode.STREAMING, SessionMode.STREAMING, SessionMode.TREE))
        idle = self.random.choice((None, None, 1.0, 3.0))
        with suppress(SessionExists, NoWorker):
            self.cluster.open(self.random.choice(SESSIONS), mode, idle_s=idle)

    def close(self) -> None:
        self.cluster.close(self.random.choice(SESSIONS), abort=self.random.random() < 0.5)

    def fork(self) -> None:
        unknown = [session_id for session_id in SESSIONS if self.cluster.turns(session_id) is None]
        source, session_id = self._known_session(), self.random.choice(unknown or SESSIONS)
        turn = self.random.choice([None, *(self.cluster.turns(source) or [])])
        with suppress(SessionExists, SessionUnknown, TurnUnknown, NoWorker):
            self.cluster.fork(session_id, source, turn)

    def rollback(self) -> None:
        session_id = self._known_session()
        rids = self.cluster.turns(session_id)
        if rids:
            self.cluster.rollback(session_id, self.random.choice(rids[-4:]))

    def plain(self) -> None:
        tenant = self.random.choice(("t", "t", "u", "v"))
        self._request({"tenant": tenant})

    def turn(self) -> None:
        session_id = self.random.choice(SESSIONS)
        on_busy = self.random.choices(list(OnBusy), (5, 3, 2))[0]
        fields: dict = {"session_id": session_id, "on_busy": on_busy}
        rids = self.cluster.turns(session_id)
        if rids and self.random.random() < 0.2:
            fields["parent"] = self.random.choice([None, *rids[-4:]])
            fields["replace"] = self.random.random() < 0.3
        if self.random.random() < 0.1:
            fields["rid"] = f"r{self.random.randint(1, 5)}"  # Others have it in their sessions.
        self._request(fields)

    def burst(self) -> None:
        """More than fits, all of it growing: somebody has to give way."""
        for number in range(6):
            self._request({} if number % 2 else {"session_id": self._known_session()}, length=40)

    def come_back(self) -> str:
        """An idle session is crowded out of the cache, and goes on a while later. Returns its id."""
        session_id = self._known_session()
        self._request({"session_id": session_id})
        self.cluster.run(0.3)
        for _ in range(3):
            self._crowd()
        self.cluster.run(self.random.choice((0.3, 0.6)))
        self._request({"session_id": session_id})
        return session_id

    def meddle(self) -> None:
        """What was crowded out comes back, and while its KV is read its client, or somebody, thinks better of it."""
        self.kv_pace()
        session_id = self.come_back()
        for _ in range(20):
            if any(worker.engine.core.requests.num_waking for worker in self.cluster.workers.values()):
                break
            self.cluster.run(0.003)
        last = self.cluster.calls[f"c{self.names}"]
        what = self.random.choice(("leave", "abort", "close", "supersede", "kill", "wait", "wait"))
        if what == "leave":
            self.cluster.ingress_of(last).disconnect(last.name)
        elif what == "abort":
            self.cluster.ingresses[self._ingress()].abort(session_id, session_id=session_id)
        elif what == "close":
            self.cluster.close(session_id, abort=self.random.random() < 0.7)
        elif what == "supersede":
            self._request({"session_id": session_id, "on_busy": OnBusy.SUPERSEDE})
        elif what == "kill" and self.random.random() < 0.3:
            self.kill()

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
            grammar=old.submit.grammar,
            **(old.turn or {}),
        )

    def _known_session(self) -> str:
        """One that has turns, if there is any."""
        known = [session_id for session_id in SESSIONS if self.cluster.turns(session_id)]
        return self.random.choice(known or SESSIONS)

    def _request(self, fields: dict, length: int | None = None) -> None:
        self.names += 1
        name = f"c{self.names}"
        if self.random.random() < 0.1:
            fields[self.random.choice(("deadline_s", "waiting_timeout_s", "running_timeout_s"))] = 0.15
        prompt = prompt_of(name, self.random.choice((1, 3, 8, 30)))
        if self.random.random() < 0.06:
            fields["grammar"] = self.random.choice(GRAMMARS)
        fields["priority"] = self.random.choice((0, 0, 1))
        fields["weight"] = self.weights.get(fields.get("tenant", "t"), 0.0)
        max_tokens = length or self.random.choice((1, 4, 12, 40))
        self.cluster.request(name, prompt, max_tokens, via=self._ingress(), **fields)

    def _crowd(self) -> None:
        """A request that needs much of a worker's cache."""
        self.names += 1
        name = f"c{self.names}"
        self.cluster.request(name, prompt_of(name, 130), 1, via=self._ingress())

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

    def drain(self) -> None:
        ready = [worker.worker_id for worker in self.cluster.pool.members.ready()]
        if self.killed < 3 and len(ready) > 1:
            self.killed += 1
            self.cluster.drain(self.random.choice(ready), self.random.choice((0.1, 3.0)))

    def store_fault(self) -> None:
        self.cluster.store.faults.append(self.random.choice(("fail", "ambiguous")))

    def store_pace(self) -> None:
        for worker in self.cluster.workers.values():
            worker.effects.store_delay_s = self.random.choice((0.002, 0.02, 0.3))

    def kv_pace(self) -> None:
        """Copies take their time, find little room, or find a page of each image harmed."""
        for worker in self.cluster.workers.values():
            worker.effects.kv_delay_s = (0.001, self.random.choice((0.002, 0.05, 0.3)))
            worker.effects.kv.room = self.random.choice((0, 1, 3, 10**9, 10**9, 10**9))
            worker.effects.kv.harmed = {self.random.choice((0, 1, 2, 1000, 1000, 1000, 1000))}

    def image_lost(self) -> None:
        """The room is needed for others."""
        held = [worker for worker in self.cluster.workers.values() if worker.present and worker.effects.kv.images]
        if held:
            worker: SimWorker = self.random.choice(held)
            session, image = self.random.choice(sorted(worker.effects.kv.images.items()))
            worker.effects.lose_image(session, self.random.randint(0, len(image)))

    def grammar_pace(self) -> None:
        for worker in self.cluster.workers.values():
            worker.effects.grammar_delay_s = (0.001, self.random.choice((0.002, 0.1, 0.4)))
            worker.effects.grammar_timeouts = self.random.choice((0.0, 0.0, 0.3))

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
