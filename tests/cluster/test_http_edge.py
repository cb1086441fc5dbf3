"""What Serve's proxies are told: plain HTTP, or TLS that they really do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ray.serve._private import constants
from ray.serve.config import HTTPOptions

from cluster.cli_serve import ready_line
from cluster.http_edge import HAPROXY, PORTS, SELDOM, edge_environment, http_options, seldom_environment
from configs import ConfigError, IngressConfig, RemoraConfig
from configs.load import check


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


def test_haproxy_is_asked_for_in_the_environment_of_a_cluster_that_is_started() -> None:
    """And what the user has set stays."""
    assert edge_environment(RemoraConfig(), {}) == {}
    config = replace(RemoraConfig(), ingress=IngressConfig(haproxy=True))
    wanted = edge_environment(config, {PORTS[0]: "9999"})
    assert (wanted[HAPROXY], wanted["RAY_SERVE_HAPROXY_METRICS_ENABLED"]) == ("1", "0")
    assert PORTS[0] not in wanted
    assert int(wanted[PORTS[1]]) > 1024


def test_haproxy_is_not_promised_on_a_cluster_that_is_joined_without_it() -> None:
    config = replace(RemoraConfig(), ingress=IngressConfig(haproxy=True))
    with pytest.raises(ConfigError, match="joined"):
        edge_environment(config, {"RAY_ADDRESS": "10.0.0.1:6379"})
    joined = {"RAY_ADDRESS": "10.0.0.1:6379", HAPROXY: "1"}
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0"):
        edge_environment(config, joined)  # Ingresses on other nodes would not be reached.
    everywhere = replace(config, ingress=IngressConfig(haproxy=True, host="0.0.0.0"))
    assert HAPROXY not in edge_environment(everywhere, joined)
    with pytest.raises(ConfigError, match="says otherwise"):
        edge_environment(config, {HAPROXY: "0"})


def test_haproxy_and_tls_exclude_each_other(tmp_path: Path) -> None:
    ingress = replace(secured(tmp_path).ingress, haproxy=True)
    with pytest.raises(ConfigError, match="TLS"):
        check(replace(RemoraConfig(), ingress=ingress))


def test_haproxy_reaches_ingresses_on_loopback_or_everywhere() -> None:
    """Serve has it dial 127.0.0.1, whatever address ingresses listen on."""
    with pytest.raises(ConfigError, match=r"not at 192\.0\.2\.1"):
        check(replace(RemoraConfig(), ingress=IngressConfig(haproxy=True, host="192.0.2.1")))


def test_serves_clocks_are_slowed_down_only_where_the_cluster_is_ours_and_nobody_set_them() -> None:
    assert seldom_environment({}) == SELDOM
    assert seldom_environment({"RAY_ADDRESS": "10.0.0.1:6379"}) == {}
    name, *others = SELDOM
    assert list(seldom_environment({name: "0.1"})) == others


def test_serve_knows_the_clocks_that_are_slowed_down() -> None:
    """What it does not know, it ignores without a word."""
    text = Path(constants.__file__).read_text(encoding="utf-8")
    assert [name for name in SELDOM if name not in text] == []
