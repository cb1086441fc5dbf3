"""Settings: `load()` and the dataclasses it fills."""

from configs.load import ConfigError, from_tree, load, to_tree
from configs.rollout import RolloutConfig
from configs.schema import (
    AuthConfig,
    AutoscaleConfig,
    ClusterConfig,
    EngineConfig,
    HibernateConfig,
    IngressConfig,
    ModelConfig,
    RebalanceConfig,
    RemoraConfig,
    SessionConfig,
    StoreConfig,
    TenantLimits,
    TimeoutConfig,
    WorkerConfig,
)

__all__ = [
    "AuthConfig",
    "AutoscaleConfig",
    "ClusterConfig",
    "ConfigError",
    "EngineConfig",
    "HibernateConfig",
    "IngressConfig",
    "ModelConfig",
    "RebalanceConfig",
    "RemoraConfig",
    "RolloutConfig",
    "SessionConfig",
    "StoreConfig",
    "TenantLimits",
    "TimeoutConfig",
    "WorkerConfig",
    "from_tree",
    "load",
    "to_tree",
]
