"""Settings: `load()` and the dataclasses it fills."""

from configs.load import ConfigError, from_tree, load, to_tree
from configs.schema import (
    ClusterConfig,
    EngineConfig,
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
