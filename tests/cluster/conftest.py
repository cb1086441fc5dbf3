"""Fixtures of the cluster's tests."""

from tests.cluster.stores import open_store, redis_url, store

__all__ = ["open_store", "redis_url", "store"]
