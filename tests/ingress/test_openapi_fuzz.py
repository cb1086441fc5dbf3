"""Whatever is sent by the OpenAPI document, or against it, breaks nothing (rules I1, E4): schemathesis makes it up for
every operation, against a real server with real workers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from actors.ingress.openapi import document
from actors.runner.toy import ToyRunner
from configs import EngineConfig
from tests.ingress.web import Web, serving

EXAMPLES = int(os.environ.get("REMORA_FUZZ_EXAMPLES", "7"))
"""Of each kind, for each operation."""
BUDGET_S = float(os.environ.get("REMORA_FUZZ_S", "30"))
"""After so long one example of each kind has to do, on a machine that is busy with other things."""
PATIENCE_S = 30.0
TAKES_TIME = frozenset({"deadline", "waiting_timeout", "running_timeout", "grammar_timeout"})
"""Whoever gives a time of nothing is told that it is over."""
CHECKS = [response_schema_conformance, content_type_conformance, status_code_conformance]
OPERATIONS = {
    found.label: found
    for found in (one.ok() for one in schemathesis.openapi.from_dict(document()).get_all_operations())
}


def generation(began: float) -> settings:
    return settings(
        max_examples=EXAMPLES if time.monotonic() - began < BUDGET_S else 1,
        deadline=None,
        phases=[Phase.generate],
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module")
def began() -> float:
    return time.monotonic()


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Short contexts, so that a request without a limit ends soon."""
    engine = EngineConfig(check_invariants=True)
    folder = tmp_path_factory.mktemp("fuzz")
    with serving(folder, workers=2, runner=lambda: ToyRunner(max_context=128), engine=engine) as made:
        yield made


def modes(operation: Any) -> list[GenerationMode]:
    """Wrong data is made up for bodies and queries: there is none for operations without."""
    raw = operation.definition.raw
    varied = "requestBody" in raw or any(one.get("in") == "query" for one in raw.get("parameters", ()))
    return [GenerationMode.POSITIVE, GenerationMode.NEGATIVE] if varied else [GenerationMode.POSITIVE]


@pytest.mark.parametrize("label", sorted(OPERATIONS))
def test_nothing_that_is_sent_breaks_anything(web: Web, began: float, label: str) -> None:
    """I1, E4: never a 5xx but for a time that was given and is over; every answer is what the document says."""
    session = requests.Session()

    def send(case: Case) -> None:
        response = case.call(base_url=web.url, session=session, timeout=PATIENCE_S)
        if response.status_code >= 500 and label != "GET /health":
            assert (response.status_code, response.json()["error"]["reason"] in TAKES_TIME) == (503, True)
        case.validate_response(response, checks=CHECKS)
        if label == "POST /pause_generation":
            assert session.post(f"{web.url}/continue_generation", timeout=PATIENCE_S).status_code == 200

    for mode in modes(OPERATIONS[label]):
        generation(began)(given(case=OPERATIONS[label].as_strategy(generation_mode=mode))(send))()
    assert session.get(f"{web.url}/health", timeout=PATIENCE_S).json()["status"] == "ok"
    session.close()


def test_nothing_is_left_behind(web: Web) -> None:
    """E1, K6: after all of that every request has ended, and both workers compute."""
    requests.post(f"{web.url}/v1/aborts", json={"all": True}, timeout=PATIENCE_S)
    web.wait_until(lambda: web.at.ingress.metrics.open_requests == 0)
    web.wait_until(lambda: not any(web.at.shell(worker).stats()["live"] for worker in ("w1", "w2")))
    assert requests.get(f"{web.url}/health_generate", timeout=PATIENCE_S).status_code == 200
