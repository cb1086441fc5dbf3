"""What Serve's HTTP proxies are told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs import ConfigError, RemoraConfig

HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"


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


def scheme(config: RemoraConfig) -> str:
    return "https" if config.ingress.tls_certificate else "http"
