"""What the engine's parts share: the owners of state, the counters, and the outputs of the verb being handled."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from actors.engine.clocks import Clock, Clocks
from actors.engine.effects import DropKV, Effect
from actors.engine.fairness import Fairness
from actors.engine.forecast import Forecast
from actors.engine.kv.cache import KVCache
from actors.engine.queue_times import QueueTimes
from actors.engine.recent import Recent
from actors.engine.request import Request
from actors.engine.requests import RequestTable
from actors.engine.sessions import Session, SessionTable
from actors.engine.settings import EngineSettings
from actors.messages import Event

Output = Event | Effect


@dataclass(slots=True)
class Totals:
    """Counters since the engine began. `ends[(outcome, reason, stage)]` add up to `received` at rest (rule E6)."""

    received: int = 0
    ends: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    steps: int = 0
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    """Tokens computed again after a preemption; not in `prefill_tokens`."""
    output_tokens: int = 0
    cached_tokens: int = 0
    prompt_tokens: int = 0
    preemptions: int = 0
    queue_times: QueueTimes = field(default_factory=QueueTimes)


@dataclass(slots=True)
class Image:
    """What the shell keeps of a session's KV: full pages, named by `keys`. `saving`: and what it will keep when the
    copy under way is done; empty when there is none."""

    keys: list[bytes] = field(default_factory=list)
    saving: list[bytes] = field(default_factory=list)


LEFT_S = 10.0
"""For how long a session that was given up is not taken in again under the same epoch: the pool raises it meanwhile."""


@dataclass(slots=True)
class Core:
    """Owners of the engine's state. Parts mutate through them, and speak by appending to `out`."""

    settings: EngineSettings
    kv: KVCache
    requests: RequestTable = field(default_factory=RequestTable)
    sessions: SessionTable = field(default_factory=SessionTable)
    clocks: Clocks = field(default_factory=Clocks)
    tombstones: Recent = field(default_factory=lambda: Recent(0.0))
    """Aborts whose request has not come yet: attempt keys, and (tenant, rid)."""
    ended: Recent = field(default_factory=lambda: Recent(0.0))
    """(tenant, rid) and keys of requests that ended a moment ago."""
    left: Recent = field(default_factory=lambda: Recent(LEFT_S))
    """(tenant, id, generation, epoch) of sessions that were given up a moment ago."""
    images: dict[int, Image] = field(default_factory=dict)
    """By uid of the session. Whoever retires a session forgets its image."""
    fairness: Fairness = field(default_factory=Fairness)
    forecast: Forecast = field(default_factory=Forecast)
    totals: Totals = field(default_factory=Totals)
    out: list[Output] = field(default_factory=list)
    decoding: deque[list[Request]] = field(default_factory=deque)
    """Of each uncommitted plan, oldest first, whose its `decodes` are. The planner appends, the commit takes."""
    paused: bool = False
    """Nothing is planned."""
    free_sessions: list[Session] = field(default_factory=list)
    """Sessions whose lease was cleared in this verb: their next queued turn may start."""

    def take_output(self) -> list[Output]:
        out, self.out = self.out, []
        return out


def start_idle_clock(core: Core, session: Session) -> None:
    """The session is idle since `idle_since` (rule S8). One entry per session: when it rings too early, because a turn
    ran meanwhile, it is set again."""
    if session.idle_timeout_s and not session.idle_clock_set:
        session.idle_clock_set = True
        core.clocks.set(session.idle_since + session.idle_timeout_s, Clock.IDLE, session.uid)


def forget_image(core: Core, session: int) -> None:
    """Have the shell forget what it keeps of a session's KV."""
    if core.images.pop(session, None) is not None:
        core.out.append(DropKV(session=session))


def new_core(settings: EngineSettings) -> Core:
    kv = KVCache(settings.num_pages, settings.page_size, prefix_cache=settings.prefix_cache)
    return Core(
        settings=settings,
        kv=kv,
        forecast=Forecast(measured=settings.forecast),
        tombstones=Recent(settings.tombstone_s),
        ended=Recent(settings.tombstone_s),
    )
