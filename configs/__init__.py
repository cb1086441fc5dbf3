"""Settings: `load()` and the dataclasses it fills."""

from configs.load import ConfigError, from_tree, load, to_tree
from configs.schema import (
    ClusterConfig,
    EngineConfig,
    HibernateConfig,
    IngressConfig,
    ModelConfig,
    RemoraConfig,
    SessionConfig,
    StoreConfig,
    TimeoutConfig,
    WorkerConfig,
)

__all__ = [
    "ClusterConfig",
    "ConfigError",
    "EngineConfig",
    "HibernateConfig",
    "IngressConfig",
    "ModelConfig",
    "RemoraConfig",
    "SessionConfig",
    "StoreConfig",
    "TimeoutConfig",
    "WorkerConfig",
    "from_tree",
    "load",
    "to_tree",
]
