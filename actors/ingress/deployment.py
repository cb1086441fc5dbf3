"""The ingress as a Serve deployment. The only file of the ingress that knows Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray import serve
from starlette.applications import Starlette

from actors import process
from actors.ingress.app import build_app
from actors.ingress.core import Ingress
from actors.ingress.edge_limits import NamedOutside
from actors.ingress.load_text import load_text_model
from actors.ports import PoolPort
from configs import RemoraConfig
from configs.load import from_tree

PoolPortFactory = Callable[[Any], PoolPort]
"""Makes the ingress's port to the pool out of the pool's deployment handle."""

MAX_ONGOING_REQUESTS = 10_000
"""Admission is the workers' business (429): Serve must never make a request wait where an abort cannot reach it."""


@serve.deployment(
    name="ingress",
    max_ongoing_requests=MAX_ONGOING_REQUESTS,
    ray_actor_options={"num_cpus": 0},
    graceful_shutdown_wait_loop_s=0.1,
    graceful_shutdown_timeout_s=30.0,
)
@serve.ingress()
class IngressDeployment:
    """`IngressDeployment.bind(pool_port_factory, pool_handle, config_tree, deployed_at)`.

    The factory is passed in because the pool's adapter belongs to a layer above this one.
    """

    def __init__(
        self, pool_port_factory: PoolPortFactory, pool_handle: Any, config_tree: dict[str, Any], deployed_at: int
    ) -> None:
        config = from_tree(RemoraConfig, config_tree)
        pool = pool_port_factory(pool_handle)
        self._ingress = Ingress(pool, load_text_model(config), config, deployed_at=deployed_at)
        process.settle_garbage()

    def __serve_build_asgi_app__(self) -> Starlette:
        app = build_app(self._ingress)
        app.add_middleware(NamedOutside)
        return app
