"""Who may ask what over HTTP: the edge itself, keys, limits of tenants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IngressConfig:
    """The HTTP edge.

    `haproxy`: Serve's HAProxy carries requests to the ingresses in place of its proxies in Python, at a fraction of
    their cost; it knows no TLS, and no heads of more than 16 KiB.
    `flush_s`: later tokens of a stream are sent about this often (the first at once), and half as often where there
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
