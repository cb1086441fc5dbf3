"""Whether two processes were given the same settings."""

from __future__ import annotations

import hashlib
import json

from configs.load import to_tree
from configs.schema import RemoraConfig

_SECTIONS = ("model", "engine", "hibernate", "sessions", "timeouts", "workers", "store", "cluster")
_NOT_THE_WORKERS_OWN = (
    ("workers", "count"),
    ("sessions", "weights"),
    ("sessions", "pin_grace_s"),
    ("model", "tool_format"),
    ("model", "reasoning"),
)


def store_digest(config: RemoraConfig) -> str:
    """Of where sessions are kept: whoever keeps them elsewhere is of another cluster."""
    where = (config.store.url, config.store.vocabulary)
    return hashlib.blake2b(json.dumps(where).encode(), digest_size=8).hexdigest()


def worker_digest(config: RemoraConfig) -> str:
    """Of all settings that a worker lives by: one that was started with others must be replaced."""
    tree = to_tree(config)
    kept = {section: dict(tree[section]) for section in _SECTIONS}
    for section, name in _NOT_THE_WORKERS_OWN:
        del kept[section][name]
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=8).hexdigest()
