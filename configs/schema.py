"""The settings of a Remora cluster: frozen dataclasses with their defaults and units.

Durations end in `_s`, sizes say what they count. `0` for a timeout means "off" (rule C2).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What is served.

    `id`: `default` (SmolLM2-135M-Instruct), a Hugging Face hub id, a folder with safetensors, or a `.gguf` file.
    `served_name`: the name in /v1/models; empty = derived from `id`. `dtype`: auto, float32, bfloat16, float16.
    `max_context`: longest context in tokens; 0 = what the model allows.
    `cache_dir`: where downloads and conversions are kept; empty = the user's cache folder.
    """

    id: str = "default"
    served_name: str = ""
    dtype: str = "auto"
    max_context: int = 0
    cache_dir: str = ""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One worker's scheduler and KV cache.

    `page_size`: tokens per KV page; 0 = 16 on CPU, 64 on CUDA. `kv_tokens`: size of the KV cache in tokens.
    `max_step_tokens`: tokens computed in one step, decodes and prefill chunks together.
    `max_running`, `max_waiting`: requests in the batch and in the queue; `max_queued_turns`: turns waiting per session.
    `depth`: steps in flight beyond the one being decided. 1 hides planning behind a GPU's work; on a CPU it hides
    nothing and makes an abort wait for one step more.
    `grammar_timeout_s`: how long a grammar may take to be compiled, its turn in the pool included.
    `check_invariants`: verify the conservation law after every step (tests), not only on demand.
    """

    page_size: int = 0
    kv_tokens: int = 65536
    max_step_tokens: int = 256
    max_running: int = 64
    max_waiting: int = 1024
    max_queued_turns: int = 8
    depth: int = 0
    prefix_cache: bool = True
    share_prefix_across_tenants: bool = False
    check_invariants: bool = False
    tombstone_s: float = 30.0
    grammar_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class HibernateConfig:
    """Where the KV of idle sessions goes when the cache is short of pages (rule K7), for each worker.

    `host_bytes`, `disk_bytes`: budgets of host memory and of files; the least recently used moves on from memory to
    files, and from files to nothing. 0 and 0 = sessions do not hibernate: a session that was evicted is prefilled from
    its history. `directory`: where the files are; empty = a folder of the worker's own in the system's temporary one.
    `below`: copies are made ahead of need while less than this share of the pages is free or could be freed without
    losing any.
    """

    host_bytes: int = 2**30
    disk_bytes: int = 0
    directory: str = ""
    below: float = 0.25


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Limits and clocks of sessions. `idle_timeout_s` is the default, `max_idle_timeout_s` what a caller may ask for
    (0 = no limit)."""

    idle_timeout_s: float = 3600.0
    max_idle_timeout_s: float = 0.0
    max_per_worker: int = 10_000
    max_per_tenant: int = 10_000
    capacity_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TimeoutConfig:
    """Request clocks (rule C1): defaults, and maxima a caller may ask for. 0 = off / no limit."""

    waiting_s: float = 0.0
    running_s: float = 0.0
    max_waiting_s: float = 0.0
    max_running_s: float = 0.0
    max_deadline_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The worker actors.

    `runner`: `torch`, or `toy` (no model: the next token is a hash of the KV; for tests).
    `attention`: attention backend of the torch runner. `threads`: compute threads per worker; 0 = cores / workers.
    `num_cpus`, `num_gpus`: Ray resources of one worker. `toy_step_s`: how long a step of the toy runner takes.
    """

    count: int = 1
    runner: str = "torch"
    attention: str = "auto"
    threads: int = 0
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    toy_step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class IngressConfig:
    """The HTTP edge.

    `flush_s`: later tokens of a stream are sent at most this often (the first at once).
    `keepalive_after_s`: rule E3. `stall_timeout_s`, `send_buffer_bytes`: rule A8.
    `affinity_headers`: headers that steer placement and nothing else (rule P5).
    """

    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 1
    max_body_bytes: int = 16 * 2**20
    flush_s: float = 0.025
    keepalive_after_s: float = 15.0
    stall_timeout_s: float = 30.0
    send_buffer_bytes: int = 256 * 2**10
    affinity_headers: tuple[str, ...] = (
        "x-session-id",
        "x-conversation-id",
        "x-openwebui-chat-id",
        "x-session-affinity",
        "x-claude-code-session-id",
        "session-id",
        "x-litellm-session-id",
    )


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Where sessions are kept. `url`: `sqlite:PATH`, or empty for a file in the user's state folder, one per model.

    `vocabulary`: whose token ids these are; a store that holds sessions of another is refused. Empty = not checked;
    `remora serve` fills it in.
    `commit_timeout_s`: how long a finished turn waits for the store before it ends with an error (rule T1).
    """

    url: str = ""
    vocabulary: str = ""
    commit_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Leases and heartbeats between pool, workers and ingresses.

    `heartbeat_s`: how often the pool asks each worker; `suspect_s`: without an answer for so long it gets no new
    sessions; `dead_s`: and after so long it is replaced. `ingress_lease_s`: an ingress that stops polling for so
    long is dead. `pool_lease_s`: a worker that no pool has spoken to for so long ends itself.
    `start_timeout_s`: for a worker to load its model.
    """

    namespace: str = "remora"
    heartbeat_s: float = 1.0
    suspect_s: float = 5.0
    dead_s: float = 30.0
    ingress_lease_s: float = 5.0
    pool_lease_s: float = 60.0
    start_timeout_s: float = 300.0
    drain_grace_s: float = 30.0


@dataclass(frozen=True, slots=True)
class RemoraConfig:
    """Everything. Load it with `configs.load`."""

    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    hibernate: HibernateConfig = field(default_factory=HibernateConfig)
    sessions: SessionConfig = field(default_factory=SessionConfig)
    timeouts: TimeoutConfig = field(default_factory=TimeoutConfig)
    workers: WorkerConfig = field(default_factory=WorkerConfig)
    ingress: IngressConfig = field(default_factory=IngressConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
