"""Callers with keys."""

from __future__ import annotations

from typing import Any

from actors.ingress.app import build_app
from actors.ingress.core import Ingress
from configs import AuthConfig
from configs.keys import fingerprint
from tests.ingress.asgi import Call, Client

ACME, ACME_TOO, GLOBEX, OPS = "rmk-acme", "rmk-acme-2", "rmk-globex", "rmk-ops"


def hashed(tenant: str, key: str, *flags: str) -> str:
    """An entry of `auth.keys`."""
    return ":".join([tenant, fingerprint(key.encode()), *flags])


def keys(**fields: Any) -> AuthConfig:
    """Two tenants, one of them with two keys, and an operator."""
    entries = (
        hashed("acme", ACME),
        hashed("acme", ACME_TOO),
        hashed("globex", GLOBEX),
        hashed("operations", OPS, "admin"),
    )
    return AuthConfig(keys=entries, **fields)


class Keyed(Client):
    """Shows its key with every call."""

    def __init__(self, ingress: Ingress, key: str) -> None:
        super().__init__(build_app(ingress))
        self._key = key

    def start(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Call:
        return super().start(method, path, body, {"authorization": f"Bearer {self._key}", **(headers or {})})
