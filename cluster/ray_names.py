"""Our detached actors by name: the store's, the workers'."""

from __future__ import annotations

import ray

NAME_PREFIX = "remora:"
STORE_NAME = f"{NAME_PREFIX}store"
HEAD_NODE = {"node:__internal_head__": 0.001}
"""Resources that only the head node has: what must outlive other nodes runs there."""


def actor_names(namespace: str) -> list[str]:
    """Named actors of a namespace."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in named if actor["namespace"] == namespace]
