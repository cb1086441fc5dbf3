"""Settings: `load()` and the dataclasses it fills."""

from configs.cluster import ClusterConfig
from configs.edge import AuthConfig, IngressConfig, TenantLimits
from configs.load import ConfigError, from_tree, load, to_tree
from configs.rollout import RolloutConfig
from configs.scaling import AutoscaleConfig, RebalanceConfig
from configs.schema import RemoraConfig
from configs.sessions import SessionConfig, StoreConfig, TimeoutConfig
from configs.workers import EngineConfig, HibernateConfig, ModelConfig, WorkerConfig

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
