"""How pool, workers and ingresses find out that one of them is gone, and how long they wait for it."""

from __future__ import annotations

from dataclasses import dataclass


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
