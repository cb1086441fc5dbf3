"""A worker without its actor: engine, loop thread, runner, mailbox, outbox and store effects, put together.

Everything here may be called from any thread. The Ray actor is a thin wrapper around it; tests use it as it is.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from actors.engine.effects import CompileGrammar, DropKV, Effect, LoadKV, PackKV, ReleaseGrammar, SaveKV, UnpackKV
from actors.engine.engine import Engine
from actors.engine.settings import EngineSettings
from actors.messages import (
    Abort,
    CloseSession,
    Drain,
    Event,
    FlushCache,
    ForkSession,
    GetSession,
    LeaveSession,
    OpenSession,
    Pause,
    ReceiveSession,
    Resume,
    RollbackSession,
    Shutdown,
    Submit,
)
from actors.records import SessionStore
from actors.runner.base import ModelRunner, RunnerInfo
from actors.wire import decode_frame
from actors.worker.figures import Rates, engine_row, hibernation_row, tables_row
from actors.worker.grammar_effects import GrammarEffects
from actors.worker.kv_effects import KVEffects
from actors.worker.kv_parcels import Parcels
from actors.worker.loop import Loop
from actors.worker.mailbox import Mailbox
from actors.worker.outbox import Outbox
from actors.worker.request_log import request_log
from actors.worker.store_effects import StoreEffects
from configs import HibernateConfig, RemoraConfig

Ask = (
    Abort
    | OpenSession
    | CloseSession
    | ForkSession
    | RollbackSession
    | GetSession
    | FlushCache
    | Drain
    | Pause
    | Resume
    | LeaveSession
    | ReceiveSession
)


class WorkerStopped(Exception):
    """The worker has stopped; nothing will be answered any more."""


def engine_settings(config: RemoraConfig, info: RunnerInfo, bos_id: int | None = None) -> EngineSettings:
    """What the engine must know, from the configuration and from what the runner says of itself."""
    return EngineSettings(
        page_size=info.page_size,
        num_pages=info.num_pages,
        max_context=info.max_context,
        vocab_size=info.vocab_size,
        eos_ids=info.eos_ids,
        bos_id=bos_id,
        vocab_bytes=info.vocab_bytes,
        no_grammars=info.no_grammars,
        hibernate_below=_hibernate_below(config.hibernate, info),
        page_bytes=info.page_bytes,
        max_step_tokens=config.engine.max_step_tokens,
        mixed_prefill_tokens=config.engine.mixed_prefill_tokens or _mixed_prefill_tokens(config.engine.max_step_tokens),
        max_running=config.engine.max_running,
        max_waiting=config.engine.max_waiting,
        max_queued_turns=config.engine.max_queued_turns,
        depth=config.engine.depth,
        prefix_cache=config.engine.prefix_cache,
        forecast=config.engine.forecast,
        share_prefix_across_tenants=config.engine.share_prefix_across_tenants,
        tombstone_s=config.engine.tombstone_s,
        waiting_timeout_s=config.timeouts.waiting_s,
        running_timeout_s=config.timeouts.running_s,
        max_waiting_timeout_s=config.timeouts.max_waiting_s,
        max_running_timeout_s=config.timeouts.max_running_s,
        max_deadline_s=config.timeouts.max_deadline_s,
    )


def _mixed_prefill_tokens(max_step_tokens: int) -> int:
    """A bit less than half: the pauses of running replies are about as much shorter, and prompts that arrive together
    get out of step, so that each finds less of a queue the next time. That costs a percent or two of throughput."""
    return max(2, max_step_tokens * 7 // 16)


def _hibernate_below(config: HibernateConfig, info: RunnerInfo) -> float:
    """0 where sessions cannot hibernate: there is no room for a page, or the runner's pages cannot leave."""
    room = max(config.host_bytes, config.disk_bytes)
    return config.below if info.page_bytes and room >= info.page_bytes else 0.0


class WorkerShell:
    """One worker in this process. `start` it, talk to it, `stop` it."""

    def __init__(
        self,
        worker_id: str,
        config: RemoraConfig,
        runner: ModelRunner,
        store: SessionStore,
        *,
        bos_id: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.worker_id = worker_id
        self.runner = runner
        self._clock = clock
        self._max_running = config.engine.max_running
        self._draining = False
        self._stopped = False
        self._mailbox = Mailbox()
        self._log = request_log(worker_id, config, clock, wall_clock)
        self._outbox = self._log or Outbox(config.cluster.ingress_lease_s, clock, config.ingress.flush_s)
        self._kv_effects = KVEffects(runner, config.hibernate, self._mailbox.put)
        self._store_effects = StoreEffects(store, self._mailbox.put, wall_clock, runner.info.weights)
        self._grammar_effects = GrammarEffects(
            runner.matchers, self._mailbox.put, timeout_s=config.engine.grammar_timeout_s, clock=clock
        )
        settings = engine_settings(config, runner.info, bos_id)
        self._loop = Loop(Engine(settings), runner, self._mailbox, self._outbox, self._perform, clock)
        self._loop.check_invariants = config.engine.check_invariants
        self._thread = threading.Thread(target=self._run, name=f"remora-loop-{worker_id}", daemon=True)
        self._rates = Rates()
        self.loop_error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self, reason: Shutdown | None = None) -> None:
        """End every request with reason `shutdown`, let its event leave, and stop the loop."""
        if self._stopped:
            return
        self._mailbox.put(reason or Shutdown())
        self._stopped = True
        self._loop.stop()
        if self._thread.is_alive():
            self._thread.join()
        self._kv_effects.close()
        self._grammar_effects.close()
        self._store_effects.close()
        self._outbox.fail_asks(WorkerStopped(self.worker_id))
        if self._log is not None:
            self._log.close()
        self.runner.close()

    @property
    def alive(self) -> bool:
        """Whether the loop runs. False after `stop`, and after a bug in the engine ended it."""
        return self._thread.is_alive()

    # -- data path -------------------------------------------------------------------------------------------------

    def submit(self, message: Submit) -> None:
        """Take a request. Whatever becomes of it comes back as events of its ingress. Raises WorkerStopped."""
        if self._stopped or self.loop_error is not None:
            raise WorkerStopped(self.worker_id)
        self._outbox.expect(message.ingress)
        if self._log is not None:
            self._log.begin(message)
        self._mailbox.put(message)

    async def poll_frame(self, ingress: str, acknowledged: int = 0, timeout_s: float = 1.0) -> bytes:
        """The next frame for an ingress; empty when nothing came for `timeout_s`. See `Outbox.take`."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(ready.set)

        for patient, wait_s in ((True, self._outbox.lingers_s(ingress)), (False, timeout_s)):
            if wait_s <= 0:
                continue
            frame = self._outbox.take(ingress, acknowledged, wake, patient=patient)
            if frame is not None:
                return frame
            await _set_within(ready, wait_s)
            ready.clear()
        return self._outbox.take(ingress, acknowledged, _nobody) or b""

    async def poll(self, ingress: str, timeout_s: float = 1.0) -> list[Event]:
        """Events for an ingress, decoded; for use within one process."""
        frame = await self.poll_frame(ingress, self._acknowledge_all, timeout_s)
        return decode_frame(frame)[1] if frame else []

    # -- control path ----------------------------------------------------------------------------------------------

    def abort(self, message: Abort) -> None:
        """Fire and forget: handled before the next plan (rule A3)."""
        self._mailbox.put(message)

    def ask(self, message: Ask) -> Future[object]:
        """A control message; the future holds the reply's value, or WorkerStopped."""
        self._draining = self._draining or isinstance(message, Drain)
        number, future = self._outbox.new_ask()
        if self._stopped or self.loop_error is not None:
            future.set_exception(WorkerStopped(self.worker_id))
        else:
            self._mailbox.put(replace(message, ask=number))
        return future

    @property
    def parcels(self) -> Parcels:
        """KV on its way from here to another worker, or from there to here."""
        return self._kv_effects.parcels

    def stats(self) -> dict[str, object]:
        """A row of /v1/stats."""
        stats, info, now = self._loop.stats, self.runner.info, self._clock()
        return {
            "id": self.worker_id,
            "node": socket.gethostname(),
            "pid": os.getpid(),
            "runner": info.description,
            "not_taken": dict(info.not_taken),
            "weights": info.weights,
            "max_context": info.max_context,
            "max_running": self._max_running,
            "draining": self._draining,
            **engine_row(stats, now),
            "loop": self._loop.progress.row(),
            "hibernate": {**self._kv_effects.stats(), **hibernation_row(stats)},
            "tables": {
                **tables_row(stats),
                "mail": len(self._mailbox),
                "parcels": len(self.parcels),
                "storing": self._store_effects.waiting,
                "grammars": self._grammar_effects.compiling,
                **self._outbox.figures(),
            },
            "rates": self._rates.at(now, stats),
        }

    # -- inside ----------------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, (CompileGrammar, ReleaseGrammar)):
            self._grammar_effects.perform(effect)
        elif isinstance(effect, (SaveKV, LoadKV, DropKV, PackKV, UnpackKV)):
            self._kv_effects.perform(effect)
        else:
            self._store_effects.perform(effect)

    @property
    def _acknowledge_all(self) -> int:
        return 2**62

    def _run(self) -> None:
        try:
            self._loop.run()
        except BaseException as error:
            self.loop_error = error
            self._outbox.fail_asks(WorkerStopped(f"{self.worker_id}: {error!r}"))
            raise


async def _set_within(event: asyncio.Event, wait_s: float) -> None:
    """Until the event is set, by this at the latest."""
    timer = asyncio.get_running_loop().call_later(wait_s, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()


def _nobody() -> None:
    """The second look of a poll waits for nothing."""
