"""The whole application for Serve: `import_path: cluster.app:app` in a Serve config, or `app({...})` in Python."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from actors.ingress.deployment import IngressDeployment
from cluster.located import with_vocabulary
from cluster.pool_deployment import PoolDeployment, serve_pool_port
from configs import RemoraConfig, from_tree, load, to_tree
from configs.keys import keys_in
from configs.load import check


def app(args: Mapping[str, Any]) -> Any:
    """The bound application. `args`: settings as in a config file (`{"workers": {"count": 2}}`), and `config`: a file
    to take the rest from, on the node that builds it. Finds or fetches the model, so that one that cannot be had fails
    here. Raises ConfigError, ModelError."""
    return build_app(with_vocabulary(settings_of(args)))


def settings_of(args: Mapping[str, Any]) -> RemoraConfig:
    """See `app`. Raises ConfigError."""
    settings = dict(args)
    path = settings.pop("config", None)
    if path is None:
        return check(from_tree(RemoraConfig, settings))
    dotted = {f"{section}.{name}": value for section, values in settings.items() for name, value in values.items()}
    return load(path, dotted)


def build_app(config: RemoraConfig) -> Any:
    """Pool and ingress, tied together. Keys of REMORA_API_KEYS count too: only their hashes travel.

    Raises ConfigError when one of them is not well-formed.
    """
    tree = to_tree(with_keys_of(os.environ, config))
    pool_deployment: Any = PoolDeployment  # `serve.deployment` has made them more than classes.
    ingress_deployment: Any = IngressDeployment
    pool = pool_deployment.options(user_config={"workers": config.workers.count}).bind(tree)
    ingress = ingress_deployment.options(num_replicas=config.ingress.replicas)
    return ingress.bind(partial(serve_pool_port, config.cluster.namespace), pool, tree, int(time.time()))


def with_keys_of(environ: Mapping[str, str], config: RemoraConfig) -> RemoraConfig:
    """The configuration, and the keys of REMORA_API_KEYS. Raises ConfigError."""
    return replace(config, auth=replace(config.auth, keys=(*config.auth.keys, *keys_in(environ))))
