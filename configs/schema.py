"""The settings of a Remora cluster: frozen dataclasses with their defaults and units.

Durations end in `_s`, sizes say what they count. `0` for a timeout means "off" (rule C2).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from configs.rollout import RolloutConfig


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What is served.

    `id`: `default` (SmolLM2-135M-Instruct), a Hugging Face hub id, a folder with safetensors, or a `.gguf` file.
    `served_name`: the name in /v1/models; empty = derived from `id`. `dtype`: auto, float32, bfloat16, float16.
    `quantization`: int8 = weights and what is multiplied by them become int8 as the model is loaded (W8A8: one scale of
    each output channel, one of each token; attention and KV stay in `dtype`). The cpu runner computes it; elsewhere it
    is refused. Empty = as the weights are.
    `max_context`: longest context in tokens; 0 = what the model allows.
    `cache_dir`: where downloads and conversions are kept; empty = the user's cache folder.
    `packed_cache`: where the fused CPU step keeps weights as it reads them, so that a worker need not pack them when it
    starts, and all of a machine have them in memory once: a folder; auto = beside the conversions; off = each worker
    packs its own, in memory.
    `tool_format`: how the model writes calls of tools: hermes (Qwen 2.5, Qwen 3), llama3, mistral, mistral_args
    (newer), qwen_xml (Qwen 3 Coder). `reasoning`: how it marks what it thinks: think (`<think>`), think_brackets
    (`[THINK]`). auto = as the chat template has it; off = none, such text is text.
    """

    id: str = "default"
    served_name: str = ""
    dtype: str = "auto"
    quantization: str = ""
    max_context: int = 0
    cache_dir: str = ""
    packed_cache: str = "auto"
    tool_format: str = "auto"
    reasoning: str = "auto"


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One worker's scheduler and KV cache.

    `page_size`: tokens per KV page; 0 = 16 on CPU, 64 on CUDA. `kv_tokens`: size of the KV cache in tokens; 0 = on a
    GPU, what fits beside the weights in `gpu_memory_share` of its memory.
    `max_step_tokens`: tokens computed in one step, decodes and prefill chunks together. `mixed_prefill_tokens`: those
    of prompts, in a step that has decodes; 0 = 7/16 of `max_step_tokens`.
    `max_running`, `max_waiting`: requests in the batch and in the queue; `max_queued_turns`: turns waiting per session.
    `depth`: steps in flight beyond the one being decided. 1 hides planning behind a GPU's work; on a CPU it hides
    nothing and makes an abort wait for one step more.
    `grammar_timeout_s`: how long a grammar may take to be compiled, its turn in the pool included.
    `forecast`: a request starts when the KV that it will probably need is there, by what others needed of their
    `max_tokens`; off, when its prompt has room, at the price of more preemptions.
    `check_invariants`: verify the conservation law after every step (tests), not only on demand.
    """

    page_size: int = 0
    kv_tokens: int = 65536
    max_step_tokens: int = 256
    mixed_prefill_tokens: int = 0
    max_running: int = 64
    max_waiting: int = 1024
    max_queued_turns: int = 8
    depth: int = 0
    prefix_cache: bool = True
    forecast: bool = True
    share_prefix_across_tenants: bool = False
    check_invariants: bool = False
    tombstone_s: float = 30.0
    grammar_timeout_s: float = 10.0
    gpu_memory_share: float = 0.9


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


RUNNERS = ("auto", "cpu", "torch", "toy")
"""What `workers.runner` may say."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The worker actors.

    `runner`: `cpu`, the fused step of `kernels/cpu`; `torch`; `auto`, the first where it can serve the model and the
    second elsewhere; or `toy` (no model: the next token is a hash of the KV; for tests).
    `attention`: attention backend of the torch runner (any but `auto` means that one).
    `threads`: compute threads per rank; 0 = cores / ranks.
    `tensor_parallel`: over how many processes (ranks) a worker's model is split; it must divide the attention heads.
    `num_cpus`, `num_gpus`: Ray resources of each rank. `rank_placement`: `strict_pack`, all ranks of a worker on one
    node, or `pack`, on several if need be. `toy_step_s`: how long a step of the toy runner takes;
    `toy_weights`: a file whose content stands for its weights, empty = none; `toy_start_s`: how long it takes to start.
    `request_log`: a file, on each worker's node, for one JSON line per request that ended there: no prompts, no texts,
    ids escaped, with the trace that its client sent along. Empty = none.
    `cuda_graphs`: whether decodes are captured as CUDA graphs, where the attention backend allows it.
    """

    count: int = 1
    runner: str = "auto"
    attention: str = "auto"
    threads: int = 0
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    tensor_parallel: int = 1
    rank_placement: str = "strict_pack"
    toy_step_s: float = 0.0
    toy_weights: str = ""
    toy_start_s: float = 0.0
    cuda_graphs: bool = True
    request_log: str = ""


@dataclass(frozen=True, slots=True)
class AutoscaleConfig:
    """How many workers there should be, by what they have to do. Off: `workers.count` of them, always.

    `min_workers`, `max_workers`: never fewer, never more. 0 for the least: after `idle_s` without any request the last
    worker goes too; the next request starts one, and is held until that is ready.
    `requests_per_worker`: requests running and waiting that a worker should have; 0 = three quarters of
    `engine.max_running`. `queue_s`: how long a request may queue before more workers are wanted.
    `tokens_per_s`: output tokens per second that a worker should make; 0 = not looked at.
    `kv_share`: how much of its KV cache a worker's requests should need. `idle_kv_share`: how much of the KV of idle
    sessions counts with that: it can always be had back (rule S10), at the price of a prefill.
    `up_delay_s`, `down_delay_s`: for how long more, or fewer, must have been wanted before it is done.
    `margin`: fewer workers are wanted only where these would keep so much below every target.
    """

    enabled: bool = False
    min_workers: int = 1
    max_workers: int = 8
    requests_per_worker: int = 0
    queue_s: float = 2.0
    tokens_per_s: float = 0.0
    kv_share: float = 0.8
    idle_kv_share: float = 0.0
    up_delay_s: float = 5.0
    down_delay_s: float = 120.0
    idle_s: float = 600.0
    margin: float = 0.2


@dataclass(frozen=True, slots=True)
class RebalanceConfig:
    """Moving idle sessions off a hot worker between turns (rule P3). Off: a session stays while its worker lives.

    A worker is hot while it holds more than `hot` times the mean of all in requests, and at least `min_requests`, for
    `delay_s` on end; it gets rid of sessions until it would be at the mean. `max_moves`: sessions moved in one go, and
    `pause_s` between two goes off one worker. A session that moved stays for `settle_s`.
    """

    enabled: bool = False
    hot: float = 1.5
    min_requests: int = 8
    delay_s: float = 10.0
    max_moves: int = 32
    pause_s: float = 10.0
    settle_s: float = 300.0


@dataclass(frozen=True, slots=True)
class IngressConfig:
    """The HTTP edge.

    `haproxy`: Serve's HAProxy carries requests to the ingresses in place of its proxies in Python, at a fraction of
    their cost; it knows no TLS, and no heads of more than 16 KiB.
    `flush_s`: later tokens of a stream are sent at most this often (the first at once), and half as often where there
    are many streams; workers hand them over at most this often, too.
    `keepalive_after_s`: rule E3. `stall_timeout_s`, `send_buffer_bytes`: rule A8.
    `affinity_headers`: headers that steer placement and nothing else (rule P5).
    `access_log`: a file for one JSON line per request: no bodies, no keys, ids escaped. Empty = none.
    `max_header_bytes`: of a request's path, query and headers together. `body_timeout_s`: how long a client may take to
    send its body; 0 = as long as it likes.
    `cors_origins`: web pages of these origins (`https://chat.example.com`; `*` = any) may use the API; none by default.
    `tls_certificate`, `tls_key`: PEM files, the same on every node with an HTTP proxy; both or neither.
    `incremental_streaming_output`: streams of /generate tell what is new, instead of all so far, as SGLang's switch of
    that name has it.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    replicas: int = 1
    haproxy: bool = False
    max_body_bytes: int = 16 * 2**20
    flush_s: float = 0.05
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
    access_log: str = ""
    max_header_bytes: int = 64 * 2**10
    body_timeout_s: float = 60.0
    cors_origins: tuple[str, ...] = ()
    tls_certificate: str = ""
    tls_key: str = ""
    incremental_streaming_output: bool = False


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


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Leases and heartbeats between pool, workers and ingresses.

    `heartbeat_s`: how often the pool asks each worker; `suspect_s`: without an answer for so long it gets no new
    sessions; `dead_s`: and after so long it is replaced. `stuck_s`: a worker that answers, but whose step has not
    returned for so long, is replaced too, and gets no new sessions after half of that; 0 = never. Its first step, which
    may have to compile, has `start_timeout_s` if that is longer; later ones three times as long as its slowest turn.
    `ingress_lease_s`: an ingress that stops polling for so long is dead. `pool_lease_s`: a worker that no pool has
    spoken to for so long ends itself.
    `start_timeout_s`: for a worker to load its model.
    `drain_grace_s`: how long a worker that is to go may take for what runs, and to see its idle sessions off.
    `move_kv_bytes`, `move_kv_s`: the KV of a session that moves comes along if it is no larger than that and there
    within that time; else the new owner prefills from history. 0 bytes = never.
    """

    namespace: str = "remora"
    heartbeat_s: float = 1.0
    suspect_s: float = 5.0
    dead_s: float = 30.0
    stuck_s: float = 120.0
    ingress_lease_s: float = 5.0
    pool_lease_s: float = 60.0
    start_timeout_s: float = 300.0
    drain_grace_s: float = 30.0
    move_kv_bytes: int = 256 * 2**20
    move_kv_s: float = 5.0


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Who may use the HTTP API, and as which tenant (rule S13). Without any key it is open to all, as tenant `default`.

    `keys_file`: keys and limits of tenants (see `configs.keys`); it may change while the server runs, and is looked at
    every `reload_s`. `keys`: more keys, each `TENANT:SHA256` or `TENANT:SHA256:admin`, where SHA256 is what
    `remora keys new` prints; REMORA_API_KEYS, where the server is started, adds to them.
    `stats_access`: who may read /metrics and all of /v1/stats: `admin` (keys with `admin`), `key` (any key), `open`.
    """

    keys_file: str = ""
    keys: tuple[str, ...] = ()
    reload_s: float = 1.0
    stats_access: str = "admin"


@dataclass(frozen=True, slots=True)
class TenantLimits:
    """What one tenant may use (rule S10). 0 = no limit.

    `requests_per_minute`, `tokens_per_minute` (prompt and completion together) and `concurrent_requests` count requests
    that generate, in each ingress replica (see `actors.ingress.limits`). `sessions`: how many may be open in the
    cluster, exactly; 0 = what `sessions.max_per_tenant` says. `weight`: the tenant's share of a worker's queue beside
    other tenants (rule P7); as soon as one has a weight, those without count as 1; without any it is first come, first
    served.
    """

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_requests: int = 0
    sessions: int = 0
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class RemoraConfig:
    """Everything. Load it with `configs.load`.

    `tenants`: limits by tenant; `"*"` is for those not named. The keys file may say the same, and wins.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    hibernate: HibernateConfig = field(default_factory=HibernateConfig)
    sessions: SessionConfig = field(default_factory=SessionConfig)
    timeouts: TimeoutConfig = field(default_factory=TimeoutConfig)
    workers: WorkerConfig = field(default_factory=WorkerConfig)
    autoscale: AutoscaleConfig = field(default_factory=AutoscaleConfig)
    rebalance: RebalanceConfig = field(default_factory=RebalanceConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    ingress: IngressConfig = field(default_factory=IngressConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    auth: AuthConfig = field(default_factory=AuthConfig)
    tenants: dict[str, TenantLimits] = field(default_factory=dict)
