"""Who carries HTTP requests to the ingresses: Serve's proxies in Python, or its HAProxy."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from configs import ConfigError, RemoraConfig

HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
ADDRESS, ALL_INTERFACES = "RAY_ADDRESS", "0.0.0.0"
PORTS = ("RAY_SERVE_HAPROXY_STATS_PORT", "RAY_SERVE_HAPROXY_METRICS_PORT", "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT")
"""What HAProxy and the proxy behind it listen on besides: two clusters on one machine must not meet there."""
DRAIN_S = 1.0
"""How long an ingress that is to stop stays, so that HAProxy hears of it. Serve's 30 s are for balancers of clouds."""
SELDOM = {"RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.25", "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000"}
"""How often Serve looks whether there is something to do, and hands its own metrics on: by default ten times a second
each, the latter in every process that has a handle or a replica. Workers want these cores."""


def http_options(config: RemoraConfig, environ: Mapping[str, str]) -> dict[str, Any]:
    """`http_options` of `serve.start`. Raises ConfigError for TLS that the proxies would not do, which they would not
    say: Serve's HAProxy would go on in plain text."""
    ingress = config.ingress
    options: dict[str, Any] = {"host": ingress.host, "port": ingress.port}
    if not ingress.tls_certificate:
        return options
    if environ.get(HAPROXY) == "1":
        raise ConfigError(f"ingress.tls_certificate: Serve's HAProxy ({HAPROXY}=1) knows no TLS; end it in front of it")
    for name in ("tls_certificate", "tls_key"):
        path = Path(getattr(ingress, name))
        if not path.is_file():
            raise ConfigError(f"ingress.{name}: there is no file {path}")
    return {**options, "ssl_certfile": ingress.tls_certificate, "ssl_keyfile": ingress.tls_key}


def edge_environment(config: RemoraConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """What has to be in the environment of a cluster that is to be started, besides what is there already.

    Raises ConfigError for an environment that says otherwise."""
    if not config.ingress.haproxy:
        return {}
    if environ.get(HAPROXY, "1") != "1":
        raise ConfigError(f"ingress.haproxy: {HAPROXY}={environ[HAPROXY]} says otherwise")
    if environ.get(ADDRESS):
        _check_joined(config, environ)
    wanted = {
        HAPROXY: "1",
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",  # The ingresses have their own.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": str(DRAIN_S),
        **dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True)),
    }
    return {name: value for name, value in wanted.items() if name not in environ}


def seldom_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The like, of Serve's clocks. Nothing where a cluster is joined: it has its own."""
    return {} if environ.get(ADDRESS) else {name: value for name, value in SELDOM.items() if name not in environ}


def _check_joined(config: RemoraConfig, environ: Mapping[str, str]) -> None:
    """Raises ConfigError where a cluster that is joined would not have HAProxy, or where it would not find ingresses on
    other nodes."""
    if HAPROXY not in environ:
        raise ConfigError(
            f"ingress.haproxy: a cluster that is joined has it when its nodes were started with {HAPROXY}=1; set that "
            "here, too, when they were"
        )
    if config.ingress.host != ALL_INTERFACES:
        raise ConfigError(f"ingress.haproxy: on a cluster that is joined ingress.host must be {ALL_INTERFACES}")


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def scheme(config: RemoraConfig) -> str:
    return "https" if config.ingress.tls_certificate else "http"
