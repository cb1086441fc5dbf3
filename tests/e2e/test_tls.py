"""TLS at Serve's own proxy, and what passes through it: large heads, slow heads and slow bodies."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import Server

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(240)]

OPENSSL = shutil.which("openssl")
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY_S = 1.0


class Secured(Server):
    """A server with a certificate of its own making, which `trust` believes."""

    def __init__(self, folder: Path) -> None:
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        make_certificate(certificate, key)
        self.trust = ssl.create_default_context(cafile=str(certificate))
        ingress = {"tls_certificate": str(certificate), "tls_key": str(key), "body_timeout_s": BODY_S}
        super().__init__(folder, {"workers": {"runner": "toy"}, "cluster": {"namespace": "tls"}, "ingress": ingress})
        self.http = httpx.Client(base_url=self.url, timeout=60, verify=self.trust, trust_env=False)

    def _await_ready(self) -> None:
        self.url = self.url.replace("http:", "https:")
        super()._await_ready()

    def connect(self) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=100)
        return self.trust.wrap_socket(plain, server_hostname="127.0.0.1")


def make_certificate(certificate: Path, key: Path) -> None:
    assert OPENSSL is not None
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [OPENSSL, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-out", str(certificate), "-keyout", str(key)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    if OPENSSL is None:
        pytest.skip("there is no openssl here to make a certificate with")
    made = Secured(tmp_path_factory.mktemp("tls"))
    try:
        yield made
        made.stop()
    finally:
        made.kill()


def test_answers_and_streams_come_over_tls_and_nothing_without(server: Secured) -> None:
    assert server.http.get("/health").json()["status"] == "ok"
    with server.http.stream("POST", "/v1/messages", json={**CHAT, "stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("event: ")]
    assert (lines[0], lines[-1]) == ("event: message_start", "event: message_stop")
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https:", "http:") + "/health", timeout=30, trust_env=False)


def test_a_head_that_is_too_large_is_refused_behind_the_proxy(server: Secured) -> None:
    """I1: the proxy lets through what the ingress refuses."""
    answer = server.http.get("/v1/models", headers={"x-a": "b" * 70_000})
    assert (answer.status_code, answer.json()["error"]["code"]) == (431, "headers_too_large")


def test_a_body_that_does_not_come_is_given_up_behind_the_proxy(server: Secured) -> None:
    """I1."""
    with server.connect() as slow:
        slow.sendall(HEAD + b"content-length: 1000\r\n\r\n{")
        assert slow.recv(400).startswith(b"HTTP/1.1 408")


def test_a_head_that_does_not_come_holds_a_socket_and_nothing_else(server: Secured) -> None:
    """I1: the proxy waits for it as long as it takes; others are served meanwhile."""
    with server.connect() as slow:
        slow.sendall(HEAD + b"x-a: ")
        assert server.http.post("/v1/chat/completions", json=CHAT).status_code == 200
        body = json.dumps(CHAT).encode()
        slow.sendall(b"b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        assert slow.recv(400).startswith(b"HTTP/1.1 200")
