"""A cluster in one thread: workers, ingresses, a pool and a store on simulated time, over a seeded network."""

from __future__ import annotations

from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any

from actors.engine.settings import EngineSettings
from actors.messages import FlushCache, Reason, SamplingParams, SessionClosed, SessionMode, Shutdown, Submit
from actors.records import SessionUnknown
from actors.runner.toy import ToyRunner
from configs import ClusterConfig
from tests.sim.audit import audit
from tests.sim.ingress import Call, SimIngress
from tests.sim.network import Network
from tests.sim.pool import DETECT_S, SimPool
from tests.sim.store import SimStore
from tests.sim.timeline import Timeline
from tests.sim.worker import Question, SimWorker

LEASES = ClusterConfig(heartbeat_s=0.2, suspect_s=0.5, dead_s=2.0, ingress_lease_s=1.5)
LAST_EVENTS_S = 0.2
"""How long a stopped worker is given to let its last events leave."""
TURN_FIELDS = ("from_head", "parent", "replace", "drop_previous_output", "offset", "on_busy", "create")


class SimCluster:
    """`log` tells what happened, one line each. Whatever is checked is checked all the time, and in `finish`."""

    def __init__(
        self,
        *,
        workers: int = 2,
        ingresses: int = 1,
        seed: int = 0,
        page_size: int = 4,
        kv_tokens: int = 512,
        max_context: int = 256,
        step_s: float = 0.01,
        patience_s: float = LEASES.dead_s,
        replace_dead: bool = False,
        **settings: Any,
    ) -> None:
        """`settings`: of EngineSettings. A worker plans one step at a time and admits by prompts unless told else."""
        self.log: list[str] = []
        self.seed = seed
        self.timeline = Timeline()
        self.network = Network(self.timeline, seed)
        self.store = SimStore(self.log.append)
        self.modes: dict[int, SessionMode] = {}
        self.calls: dict[str, Call] = {}
        self._new_worker = partial(self._worker, page_size, kv_tokens, max_context, step_s, settings)
        self.workers = {f"w{number + 1}": self._new_worker(f"w{number + 1}") for number in range(workers)}
        self.pool = SimPool(self.timeline, self.network, self.store, self.workers, LEASES, self.log.append)
        if replace_dead:
            self.pool.replace_worker = self.add_worker
        self.ingresses = {
            name: SimIngress(name, self.timeline, self.network, self.pool, self.log.append, patience_s=patience_s)
            for name in (f"i{number + 1}" for number in range(ingresses))
        }

    # -- clients ---------------------------------------------------------------------------------------------------

    def open(self, session_id: str, mode: SessionMode = SessionMode.STREAMING, **limits: Any) -> None:
        """Raises SessionExists, NoWorker."""
        record = self.pool.open("t", session_id, mode, limits.get("idle_s"), limits.get("capacity"))
        self.modes[record.generation] = mode

    def request(self, name: str, prompt: tuple[int, ...], max_tokens: int, via: str = "i1", **fields: Any) -> Call:
        """Start a plain request, or with `session_id` a turn. `fields`: of Submit and of TurnOf."""
        body = repr((prompt, max_tokens, fields.get("grammar")))
        turn = None
        if "session_id" in fields:
            turn = {key: fields.pop(key) for key in ("session_id", *TURN_FIELDS) if key in fields}
            if "parent" in turn:
                turn.setdefault("from_head", False)
        submit = Submit(
            key="",
            rid=fields.pop("rid", name),
            ingress="",
            tenant=fields.pop("tenant", "t"),
            input_ids=prompt,
            sampling=SamplingParams(max_tokens=max_tokens),
            digest=blake2b(body.encode(), digest_size=8).digest(),
            **fields,
        )
        call = self.calls[name] = Call(name, submit, turn)
        self.ingresses[via].start(call)
        return call

    def ingress_of(self, call: Call) -> SimIngress:
        return next(ingress for ingress in self.ingresses.values() if call.name in ingress.calls)

    def close(self, session_id: str, *, abort: bool = False) -> None:
        def told(closed: SessionClosed) -> None:
            freed = f"{closed.turns} turns, {closed.freed_tokens} tokens freed" if closed.known else "unknown"
            self.log.append(f"pool: close of {session_id}: {closed.error or freed}")

        self.pool.close("t", session_id, abort, told)

    def fork(self, session_id: str, source_id: str, turn: str | None = None) -> None:
        """Raises SessionExists, SessionUnknown, TurnUnknown, NoWorker."""
        record = self.pool.fork("t", session_id, source_id, turn)
        self.modes[record.generation] = record.mode

    def rollback(self, session_id: str, turn: str) -> None:
        """Raises SessionUnknown."""
        self.pool.rollback(
            "t", session_id, turn, lambda what: self.log.append(f"pool: rollback of {session_id} to {turn}: {what}")
        )

    # -- misfortunes -----------------------------------------------------------------------------------------------

    def kill_worker(self, name: str, cause: str = "its process ended") -> None:
        self.workers[name].kill()
        self.pool.worker_died(name, cause)
        for ingress in self.ingresses.values():
            self.timeline.after(DETECT_S, lambda ingress=ingress: ingress.worker_gone(name, "it is gone"))

    def drain(self, name: str, grace_s: float) -> None:
        """As the pool does it: no new sessions; what runs may end, for so long; then the worker is stopped."""
        worker, give_up_at = self.workers[name], self.timeline.now + grace_s
        self.pool.members.drain(name, self.timeline.now)
        self.log.append(f"pool: draining {name}")

        def look() -> None:
            if worker.engine.num_live and self.timeline.now < give_up_at:
                self.timeline.after(LEASES.heartbeat_s, look)
            elif worker.alive:
                self.network.send("pool", name, Shutdown(reason=Reason.WORKER_DRAINING))
                self.timeline.after(LAST_EVENTS_S, lambda: self.kill_worker(name, "drained") if worker.alive else None)

        self.timeline.after(LEASES.heartbeat_s, look)

    def add_worker(self) -> None:
        name = f"w{len(self.workers) + 1}"
        self.workers[name] = self._new_worker(name)
        self.pool.members.add(name, self.timeline.now)

    def partition(self, one: str, other: str, *, cut: bool = True) -> None:
        self.network.link(one, other).cut = cut
        self.network.link(other, one).cut = cut

    # -- time ------------------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self.timeline.run(seconds)

    def settle(self, limit_s: float = 60.0) -> None:
        """Until every call has ended and nothing moves but heartbeats and polls."""
        until = self.timeline.now + limit_s
        while not self.at_rest:
            assert self.timeline.now < until, f"not at rest after {limit_s} s: {self.restless()}"
            self.timeline.step()

    @property
    def at_rest(self) -> bool:
        return not self.restless()

    def restless(self) -> list[str]:
        """What still goes on."""
        if self.network.in_flight:
            return [f"{self.network.in_flight} messages are under way"]
        open_calls = [f"{name} is open" for name, call in self.calls.items() if not call.over]
        if open_calls:
            return open_calls
        return [f"{name} is busy" for name, w in self.workers.items() if w.busy or (w.present and w.effects.pending)]

    # -- judgement -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let everything end, then close all sessions: nothing may be left anywhere, and nothing may be wrong."""
        self.heal()
        self.settle()
        self.run(LEASES.dead_s + LEASES.ingress_lease_s)
        self.settle()
        self.audit()
        for record in self.store.list_sessions("t"):
            self.close(record.session_id, abort=True)
        self.settle()
        assert not self.store.list_sessions("t"), "sessions are left in the store"
        living = {name: worker for name, worker in self.workers.items() if worker.alive}
        for name in living:
            self.network.send("pool", name, Question(FlushCache(), lambda value: None))
        self.settle()
        for name, worker in living.items():
            _nothing_is_left(name, worker)

    def heal(self) -> None:
        """The weather turns fine."""
        self.store.faults.clear()
        for one in [*self.workers, *self.ingresses, "pool"]:
            for other in [*self.workers, *self.ingresses, "pool"]:
                link = self.network.link(one, other)
                link.cut, link.loss, link.duplicate = False, 0.0, 0.0
                link.fates.clear()
        for worker in self.workers.values():
            worker.effects.store_delay_s = 0.002
            worker.effects.kv.room, worker.effects.kv.harmed = 10**9, set()
            worker.effects.grammar_timeouts = 0.0
            if worker.frozen:
                worker.thaw()

    def audit(self) -> None:
        audit(self.calls.values(), self.store, self.modes)

    def turns(self, session_id: str) -> list[str] | None:
        """rids of a session's committed turns, or None."""
        try:
            return [turn.rid for turn in self.store.turns("t", session_id)]
        except SessionUnknown:
            return None

    # -- inside ----------------------------------------------------------------------------------------------------

    def _worker(
        self, page_size: int, kv_tokens: int, max_context: int, step_s: float, settings: dict[str, Any], name: str
    ) -> SimWorker:
        runner = ToyRunner(
            page_size=page_size, kv_tokens=kv_tokens, max_context=max_context, clock=lambda: self.timeline.now
        )
        info = runner.info
        engine_settings = EngineSettings(
            page_size=info.page_size,
            num_pages=info.num_pages,
            max_context=info.max_context,
            vocab_size=info.vocab_size,
            vocab_bytes=info.vocab_bytes,
            no_grammars=info.no_grammars,
            eos_ids=info.eos_ids,
            **{"max_step_tokens": 16, "depth": 0, "forecast": False, **settings},
        )
        return SimWorker(
            name,
            self.timeline,
            self.network,
            self.store,
            runner=runner,
            settings=engine_settings,
            step_s=step_s,
            lease_s=LEASES.ingress_lease_s,
            random=Random(f"{self.seed} {name}"),
        )


def prompt_of(name: str, length: int) -> tuple[int, ...]:
    """A prompt of so many tokens that is this name's own."""
    random = Random(name)
    return tuple(random.randrange(97, 123) for _ in range(length))


def _nothing_is_left(name: str, worker: SimWorker) -> None:
    """At rest with all sessions closed and the cache flushed: no request, no page, no queue, no image, no copy under
    way, no grammar. Sessions that another worker took over may still be remembered, without a lease."""
    core = worker.engine.core
    for session in core.sessions.all():
        assert session.lease is None, f"{name}: a lease is left on {session.session_id}"
        assert not session.queue, f"{name}: turns are queued in {session.session_id}"
    stats = worker.engine.snapshot()
    left = (stats.live, stats.waiting, stats.running, len(core.requests))
    assert left == (0, 0, 0, 0), f"{name}: requests are left {left}"
    assert stats.pages.free == stats.pages.total, f"{name}: pages are left {stats.pages}"
    hibernated = (stats.images, stats.waking, len(core.kv.transfers), *worker.effects.left)
    assert not any(hibernated), f"{name}: images, transfers or grammars are left {hibernated}"
    received = sum(count for *_, count in stats.ends)
    assert received == stats.received, f"E6: {name} received {stats.received} and ended {received}"
