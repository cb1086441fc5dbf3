"""What sessions and their requests live by: limits and clocks, and where sessions are kept."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Limits and clocks of sessions. `idle_timeout_s` is the default, `max_idle_timeout_s` what a caller may ask for
    (0 = no limit).

    `weights`: when the model's weights change, `follow`: a session goes on with the new ones; `pin`: only with those
    that its last turn was made with. One worker of these is kept for such sessions, beside all others, for
    `pin_grace_s` at most; after that their turns are refused (409).
    """

    idle_timeout_s: float = 3600.0
    max_idle_timeout_s: float = 0.0
    max_per_worker: int = 10_000
    max_per_tenant: int = 10_000
    capacity_tokens: int = 0
    weights: str = "follow"
    pin_grace_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class TimeoutConfig:
    """Request clocks (rule C1): defaults, and maxima a caller may ask for. 0 = off / no limit.

    Without a waiting clock a request looks for a worker as long as it may take to find that one is dead and to start
    another: `cluster.dead_s` and `cluster.start_timeout_s`.
    """

    waiting_s: float = 0.0
    running_s: float = 0.0
    max_waiting_s: float = 0.0
    max_running_s: float = 0.0
    max_deadline_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where sessions are kept. `url`: `sqlite:PATH`, or empty for a file in the user's state folder, one per model;
    or `redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]` (`rediss://` for TLS, `unix://PATH?db=N` for a socket).

    `vocabulary`: whose token ids these are; a store that holds sessions of another is refused. Empty = not checked;
    `remora serve` fills it in.
    `commit_timeout_s`: how long a finished turn waits for the store before it ends with an error (rule T1).
    `prefix`: begins every key in Redis; clusters that share a Redis need one each.
    `max_session_bytes`, `max_total_bytes`: of committed turns, of one session and of all together, at 4 bytes a token
    and 200 a turn; 0 = no limit. A turn that would pass one is not stored and ends with an error (rule S10).
    `idempotency_ttl_s`: how long results of requests without a session are kept for their Idempotency-Key (rule T2),
    and responses of /v1/responses, to be asked for (or as long as an idle session lives, if that is longer);
    `max_result_bytes`: of one, `max_results_bytes`: of all together; older ones of the tenant that holds most expire
    early to make room, so that nobody loses what is within an even share.
    """

    url: str = field(default="", repr=False)  # It may hold a password.
    vocabulary: str = ""
    commit_timeout_s: float = 30.0
    prefix: str = "remora"
    max_session_bytes: int = 0
    max_total_bytes: int = 0
    idempotency_ttl_s: float = 86400.0
    max_result_bytes: int = 2**20
    max_results_bytes: int = 64 * 2**20
