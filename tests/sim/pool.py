"""The pool on simulated time: the real membership table and directory, over the simulated store and workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.messages import CloseSession, ForkSession, OpenSession, RollbackSession, SessionClosed, SessionMode
from actors.ports import NoWorker
from actors.records import SessionRecord, SessionUnknown, StoreError
from cluster.membership import Membership
from cluster.placement import Directory, choose
from configs import ClusterConfig
from tests.sim.network import Network
from tests.sim.store import SimStore
from tests.sim.timeline import Timeline
from tests.sim.worker import Answer, Question, SimWorker

POOL = "pool"
RETRY_S = 0.1
DETECT_S = 0.02
"""How long until the pending call that watches a worker sees its death."""


class SimPool:
    """Its calls answer at once: the caller adds the delays."""

    def __init__(
        self,
        timeline: Timeline,
        network: Network,
        store: SimStore,
        workers: dict[str, SimWorker],
        config: ClusterConfig,
        say: Callable[[str], None],
    ) -> None:
        self.members = Membership(config, timeline.now)
        self.directory = Directory()
        self.replace_worker: Callable[[], None] | None = None
        """Starts a worker for each that died, if set."""
        self._closing: set[int] = set()
        self._asked: dict[str, list[Callable[[], None]]] = {}
        """What to do about open questions when a worker turns out to be dead."""
        self._timeline = timeline
        self._network = network
        self._store = store
        self._workers = workers
        self._config = config
        self._say = say
        network.attach(POOL, self._receive)
        for name in workers:
            self.members.add(name, timeline.now)
        self._beat()

    def worker_died(self, name: str, cause: str) -> None:
        """Its death is seen in a moment."""
        self._timeline.after(DETECT_S, lambda: self._dead(name, cause))

    def live_workers(self) -> list[str]:
        return [worker.worker_id for worker in self.members.all() if worker.alive]

    def open(
        self, tenant: str, session_id: str, mode: SessionMode, idle_s: float | None, capacity: int | None
    ) -> SessionRecord:
        """Raises SessionExists, NoWorker. The owner is told; whoever acts on the answer may be there before."""
        owner = self._choose()
        record = self._store.create(
            tenant,
            session_id,
            owner=owner,
            mode=mode,
            idle_timeout_s=idle_s,
            capacity_tokens=capacity,
            now=self._timeline.now,
        )
        self.directory.give(record)
        message = OpenSession(
            tenant=tenant,
            session_id=session_id,
            generation=record.generation,
            epoch=record.epoch,
            mode=mode,
            idle_timeout_s=idle_s,
            capacity_tokens=capacity,
        )
        self._network.send(POOL, owner, Question(message, lambda value: None))
        return record

    def place(self, tenant: str, session_id: str) -> SessionRecord:
        """The session with a living owner. Raises SessionUnknown, NoWorker."""
        record = self._store.get(tenant, session_id)
        while not self.members.alive(record.owner):
            record = self._store.acquire(tenant, session_id, owner=self._choose(), expected_epoch=record.epoch)
            self.directory.give(record)
        self.directory.put(record)
        return record

    def close(self, tenant: str, session_id: str, abort: bool, answered: Callable[[SessionClosed], None]) -> None:
        """Through the owner, or without one."""
        try:
            record = self._store.get(tenant, session_id)
        except SessionUnknown:
            answered(SessionClosed(known=False))
            return
        if record.generation in self._closing:
            answered(SessionClosed(known=False))
            return
        self._closing.add(record.generation)

        def told(value: Any) -> None:
            if record.generation not in self._closing:
                return  # Its owner answered before it died, or the other way round.
            self._closing.discard(record.generation)
            try:
                if not value.known:
                    value = SessionClosed(known=self._store.close(tenant, session_id, record.generation))
            except StoreError as error:
                value = SessionClosed(known=True, error=str(error))
            self.directory.remove((tenant, session_id), record.generation)
            answered(value)

        if not self.members.alive(record.owner):
            told(SessionClosed(known=False))
            return
        message = CloseSession(tenant=tenant, session_id=session_id, generation=record.generation, abort_running=abort)
        ownerless = SessionClosed(known=False)
        self._asked.setdefault(record.owner, []).append(lambda: told(ownerless))
        self._network.send(POOL, record.owner, Question(message, told), refused=lambda: told(ownerless))

    def fork(self, tenant: str, session_id: str, source_id: str, turn: str | None) -> SessionRecord:
        """Raises SessionExists, SessionUnknown, TurnUnknown, NoWorker."""
        source = self.place(tenant, source_id)
        record = self._store.fork(
            tenant,
            session_id,
            source_id=source_id,
            source_generation=source.generation,
            turn=turn,
            owner=source.owner,
            now=self._timeline.now,
        )
        self.directory.give(record)
        message = ForkSession(
            tenant=tenant,
            session_id=session_id,
            generation=record.generation,
            epoch=record.epoch,
            source_id=source_id,
        )
        self._network.send(POOL, record.owner, Question(message, lambda value: None))
        return record

    def rollback(self, tenant: str, session_id: str, turn: str, answered: Callable[[str], None]) -> None:
        """Asks whoever is the owner until one can say; `answered` gets what came of it."""
        generation = self._store.get(tenant, session_id).generation

        def ask(tries: int) -> None:
            try:
                record = self.place(tenant, session_id)
            except (SessionUnknown, NoWorker) as error:
                answered(type(error).__name__)
                return
            if record.generation != generation or tries == 0:
                answered("given up")
                return
            heard = False

            def told(value: Any) -> None:
                nonlocal heard
                if heard:
                    return
                heard = True
                if value is None or value.ask_again:
                    self._timeline.after(RETRY_S, lambda: ask(tries - 1))
                else:
                    answered(value.reason.value if value.reason else f"{value.dropped} turns dropped")

            message = RollbackSession(
                tenant=tenant,
                session_id=session_id,
                generation=record.generation,
                epoch=record.epoch,
                turn=turn,
            )
            self._asked.setdefault(record.owner, []).append(lambda: told(None))
            self._network.send(POOL, record.owner, Question(message, told), refused=lambda: told(None))

        ask(tries=20)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _receive(self, sender: str, message: Any) -> None:
        if isinstance(message, Answer):
            message.answered(message.value)

    def _choose(self) -> str:
        untold = self.directory.untold
        name = choose(self.members.ready(), self.directory.count, 1000, coming=untold.coming, gone=untold.gone)
        if name is None:
            raise NoWorker("no worker is ready")
        return name

    def _beat(self) -> None:
        now = self._timeline.now
        for name, worker in self._workers.items():
            if worker.present:
                stats, untold = _stats(worker), self.directory.untold
                untold.heard(name, untold.asked(name), stats["sessions_taken"], now)
                self.members.heard(name, stats, now)
        for dead in self.members.look(now):
            self._buried(dead.worker_id, dead.cause)
        self._timeline.after(self._config.heartbeat_s, self._beat)

    def _dead(self, name: str, cause: str) -> None:
        if self.members.died(name, cause, self._timeline.now):
            self._buried(name, cause)

    def _buried(self, name: str, cause: str) -> None:
        self.directory.remove_worker(name)
        self._say(f"pool: {name} is dead, {cause}")
        for unanswered in self._asked.pop(name, []):
            unanswered()
        if self.replace_worker is not None:
            self.replace_worker()


def _stats(worker: SimWorker) -> dict[str, Any]:
    stats = worker.engine.snapshot()
    return {
        "pages": {"session_held": stats.pages.session_held, "request_owned": stats.pages.request_owned},
        "page_size": stats.page_size,
        "kv_tokens": stats.pages.total * stats.page_size,
        "turns": stats.turns,
        "sessions": stats.sessions,
        "sessions_taken": stats.sessions_taken,
        "resident_sessions": stats.resident_sessions,
        "running": stats.running,
        "waiting": stats.waiting,
    }
