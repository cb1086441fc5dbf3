"""The settings of a Remora cluster: frozen dataclasses with their defaults and units, section by section.

Durations end in `_s`, sizes say what they count. `0` for a timeout means "off" (rule C2).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from configs.cluster import ClusterConfig
from configs.edge import AuthConfig, IngressConfig, TenantLimits
from configs.rollout import RolloutConfig
from configs.scaling import AutoscaleConfig, RebalanceConfig
from configs.sessions import SessionConfig, StoreConfig, TimeoutConfig
from configs.workers import EngineConfig, HibernateConfig, ModelConfig, WorkerConfig


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
