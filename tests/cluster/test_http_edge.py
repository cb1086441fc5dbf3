"""What Serve's proxies are told: plain HTTP, or TLS that they really do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ray.serve.config import HTTPOptions

from cluster.cli_serve import ready_line
from cluster.http_edge import http_options
from configs import ConfigError, IngressConfig, RemoraConfig


def secured(folder: Path, *, missing: str = "") -> RemoraConfig:
    paths = {name: folder / f"{name}.pem" for name in ("tls_certificate", "tls_key")}
    for name, path in paths.items():
        if name != missing:
            path.write_text("-----BEGIN", encoding="ascii")
    return replace(RemoraConfig(), ingress=IngressConfig(**{name: str(path) for name, path in paths.items()}))


def test_without_a_certificate_it_is_plain_http() -> None:
    assert http_options(RemoraConfig(), {}) == {"host": "127.0.0.1", "port": 8000}
    assert "http://127.0.0.1:8000/v1" in ready_line(RemoraConfig(), [])


def test_a_certificate_makes_it_https(tmp_path: Path) -> None:
    config = secured(tmp_path)
    options = http_options(config, {})
    told = HTTPOptions(**options)
    assert (told.ssl_certfile, told.ssl_keyfile) == (config.ingress.tls_certificate, config.ingress.tls_key)
    assert "https://127.0.0.1:8000/v1" in ready_line(config, [])


@pytest.mark.parametrize("name", ["tls_certificate", "tls_key"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^ingress.{name}: there is no file"):
        http_options(secured(tmp_path, missing=name), {})


def test_a_proxy_that_knows_no_tls_is_not_trusted_with_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HAProxy"):
        http_options(secured(tmp_path), {"RAY_SERVE_ENABLE_HA_PROXY": "1"})
