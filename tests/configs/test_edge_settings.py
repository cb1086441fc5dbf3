"""Settings of the HTTP edge: limits, origins, certificates."""

from __future__ import annotations

from typing import Any

import pytest

from configs import ConfigError, RemoraConfig, from_tree, load, to_tree

REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("ingress.max_header_bytes", {"ingress.max_header_bytes": 100}),
    ("ingress.body_timeout_s", {"ingress.body_timeout_s": -1}),
    ("ingress.tls_certificate", {"ingress.tls_certificate": "a.pem"}),
    ("ingress.tls_certificate", {"ingress.tls_key": "a.pem"}),
    (r"ingress.cors_origins\[1\]", {"ingress.cors_origins": ["*", "chat.example.com"]}),
    (r"ingress.cors_origins\[0\]", {"ingress.cors_origins": ["https://chat.example.com/page"]}),
    (r"ingress.cors_origins\[0\]", {"ingress.cors_origins": ["null"]}),
    ("ingress.port", {"ingress.port": 70_000}),
]


@pytest.mark.parametrize(("path", "settings"), REFUSED)
def test_what_cannot_work_is_refused_by_name(path: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^{path}"):
        load(None, settings)


def test_origins_survive_the_way_to_an_actor() -> None:
    origins = ["https://chat.example.com", "http://localhost:3000", "https://[::1]:8443"]
    config = load(None, {"ingress.cors_origins": origins})
    assert config.ingress.cors_origins == tuple(origins)
    assert from_tree(RemoraConfig, to_tree(config)) == config


def test_nothing_is_open_to_other_pages_by_default() -> None:
    assert load().ingress.cors_origins == ()
