"""A short run of what `make rolling` does, and what the long one relies on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.chaos_clients import Hopeless
from tests.e2e.chaos_ledger import Ledger
from tests.e2e.chaos_rig import rigged
from tests.e2e.raw_http import Answer, RawClient
from tests.e2e.rolling import CONFIG, rolling, table, wrongs
from tests.e2e.rolling_clients import ERROR, Resident
from tests.e2e.rolling_steps import Operator, Step

REQUESTS = 300


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_are_replaced_and_scaled_without_an_error_seen_by_anybody(tmp_path: Path) -> None:
    """T5, T6, N51: every worker, ingress and pool is replaced, then every worker again; one becomes two and one again:
    no request fails, each turn has its whole history, never fewer are ready than wanted, nor more than one beyond."""
    with rigged(tmp_path, CONFIG, 0, head_cpus=2) as rig:
        ledger, operator = asyncio.run(
            rolling(
                rig,
                tmp_path,
                requests=REQUESTS,
                workers=2,
                sessions=4,
                visitors=2,
                thought_s=0.2,
                seed=5,
                deploy_first=True,
            )
        )
    print(table(ledger, operator))
    assert wrongs(ledger, operator) == []
    assert not ledger.errors
    assert len(ledger.took_s) >= REQUESTS
    assert ledger.done["turns"] > 100
    assert ledger.done["moves of sessions"] >= 2


def test_the_first_error_is_a_fault() -> None:
    """A client that asked again would not see what this run is about."""
    ledger = Ledger()
    client = Resident(ledger, RawClient("127.0.0.1", 1), "c", 1)
    asked = client.asked("s/1", [], {})

    async def refuses(*_: object, **__: object) -> Answer:
        return Answer(503, {"content-type": "application/json"}, b'{"error": {"reason": "worker_lost"}}')

    client.once = refuses  # type: ignore[method-assign]
    for ask in (client.insist(asked), client.open()):
        with pytest.raises(Hopeless):
            asyncio.run(ask)
    assert [kind for kind, _ in ledger.faults] == [ERROR, ERROR]
    assert ledger.errors == {"worker_lost": 2}


def test_too_few_workers_and_an_error_are_told() -> None:
    ledger = Ledger()
    ledger.fault(ERROR, "s/1: 503")
    operator = Operator(None, None, Path(), lambda: 0)  # type: ignore[arg-type]
    operator.steps.append(Step("remora rollout", fault="1 ready at least and 3 there at most, not 2 and 3"))
    assert wrongs(ledger, operator) == [
        "errors that a client heard: s/1: 503",
        "remora rollout: 1 ready at least and 3 there at most, not 2 and 3",
    ]
