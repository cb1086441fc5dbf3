"""Results of stateless requests in the stores against a dictionary, whatever the order of calls and of times."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from actors.records import SessionStore
from tests.cluster.stores import KINDS, opener
from tests.sim.results import SimResults

keys = st.sampled_from(["k", "ß:k"])
digests = st.sampled_from([b"", b"\x00\xff"])
owners = st.sampled_from(["a", "b"])


class ResultsMachine(RuleBasedStateMachine):
    """T2: one runs, the others are told what came of it, and nothing runs twice."""

    def __init__(self, store: SessionStore) -> None:
        super().__init__()
        self.store = store
        self.model = SimResults()
        self.now = 1000.0

    @rule(key=keys, digest=digests, owner=owners, lease=st.sampled_from([0.5, 3.0]))
    def claim(self, key: str, digest: bytes, owner: str, lease: float) -> None:
        what = {"digest": digest, "owner": owner, "now": self.now, "lease_s": lease}
        expected = self.model.claim_result("t", key, **what)  # type: ignore[arg-type]
        assert self.store.claim_result("t", key, **what) == expected  # type: ignore[arg-type]

    @rule(
        key=keys,
        digest=digests,
        owner=owners,
        body=st.binary(max_size=3),
        ttl=st.sampled_from([0.5, 2.0]),
        replace=st.sampled_from([False, False, True]),
    )
    def put(self, key: str, digest: bytes, owner: str, body: bytes, ttl: float, replace: bool) -> None:
        what = {"digest": digest, "owner": owner, "body": body, "now": self.now, "ttl_s": ttl, "replace": replace}
        expected = self.model.put_result("t", key, **what)  # type: ignore[arg-type]
        assert self.store.put_result("t", key, **what) is expected  # type: ignore[arg-type]

    @rule(key=keys, owner=owners)
    def release(self, key: str, owner: str) -> None:
        known = self.model.get_result("t", key, self.now)
        expected = self.model.release_result("t", key, owner=owner)
        answer = self.store.release_result("t", key, owner=owner)
        assert answer == expected or known is None, "one that lapsed may have been forgotten already"

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def says_what_the_model_says(self) -> None:
        for key in ("k", "ß:k"):
            assert self.store.get_result("t", key, self.now) == self.model.get_result("t", key, self.now)


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_of_results_does_what_a_dictionary_does(
    kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    opened: list[SessionStore] = []

    def machine() -> ResultsMachine:
        opened.append(opener(kind, request, tmp_path_factory.mktemp("store"))())
        return ResultsMachine(opened[-1])

    budget = settings(
        max_examples=30, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    try:
        run_state_machine_as_test(machine, settings=budget)
    finally:
        for store in opened:
            store.shut()  # type: ignore[attr-defined]
