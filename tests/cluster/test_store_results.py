"""What every store does with results of requests without a session (rule T2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from actors.records import ClaimStatus, PutStatus, ResultClaim, ResultRecord, ResultState, SessionStore
from cluster.store.limits import StoreLimits
from tests.cluster.stores import OpenStore
from tests.cluster.test_store_contract import all_at_once

DIGEST, OTHER = b"\x00\xffbody", b"another body"
BODY = b'{"id": "\x00\xff"}'


def claim(
    store: SessionStore, owner: str = "a", key: str = "k", now: float = 100.0, digest: bytes = DIGEST, tenant: str = "t"
) -> ResultClaim:
    return store.claim_result(tenant, key, digest=digest, owner=owner, now=now, lease_s=10.0)


def put(
    store: SessionStore,
    owner: str = "a",
    key: str = "k",
    now: float = 101.0,
    body: bytes = BODY,
    digest: bytes = DIGEST,
    ttl_s: float = 60.0,
    tenant: str = "t",
) -> PutStatus:
    return store.put_result(tenant, key, digest=digest, owner=owner, body=body, now=now, ttl_s=ttl_s)


def test_the_first_to_claim_runs_and_others_learn_who_does(store: SessionStore) -> None:
    mine = ResultRecord(state=ResultState.RUNNING, digest=DIGEST, owner="a", until=110.0)
    assert claim(store) == ResultClaim(status=ClaimStatus.CLAIMED, record=mine)
    assert claim(store, "b", now=105.0) == ResultClaim(status=ClaimStatus.RUNNING, record=mine)
    assert store.get_result("t", "k", 105.0) == mine


def test_of_many_claims_at_once_exactly_one_runs(store: SessionStore) -> None:
    """T2: never twice."""
    claims = [one for one in all_at_once(8, lambda number: claim(store, f"a{number}")) if isinstance(one, ResultClaim)]
    assert sorted(one.status.value for one in claims) == ["claimed"] + ["running"] * 7
    assert len({one.record.owner for one in claims}) == 1


def test_a_result_is_given_to_whoever_asks_with_the_same_body(store: SessionStore) -> None:
    claim(store)
    assert put(store) is PutStatus.STORED
    done = ResultRecord(state=ResultState.DONE, digest=DIGEST, owner="a", until=161.0, body=BODY)
    assert claim(store, "b", now=120.0) == ResultClaim(status=ClaimStatus.DONE, record=done)
    assert store.get_result("t", "k", 120.0) == done


@pytest.mark.parametrize("state", ["running", "done", "expired"])
def test_another_body_is_a_conflict_in_every_state_and_sees_no_result(store: SessionStore, state: str) -> None:
    """T2: 422."""
    claim(store)
    if state != "running":
        put(store)
    now = 170.0 if state == "expired" else 105.0
    answer = claim(store, "b", now=now, digest=OTHER)
    assert (answer.status, answer.record.state.value, answer.record.body) == (ClaimStatus.CONFLICT, state, b"")
    assert put(store, "b", now=now, digest=OTHER) is PutStatus.STALE
    assert claim(store, "b", now=now).status.value == state


def test_a_refused_or_aborted_request_runs_anew(store: SessionStore) -> None:
    """T2: refusals are not remembered; an aborted one runs anew, with another body too."""
    claim(store)
    assert store.release_result("t", "k", owner="b") is False
    assert store.release_result("t", "k", owner="a") is True
    assert store.release_result("t", "k", owner="a") is False
    assert store.get_result("t", "k", 101.0) is None
    assert claim(store, "b", digest=OTHER).status is ClaimStatus.CLAIMED


@pytest.mark.parametrize("state", ["none", "running", "done", "expired"])
def test_what_is_to_replace_takes_the_place_of_whatever_is_there(store: SessionStore, state: str) -> None:
    """A conversation's record is written anew with every turn; a claim of another's ends with it."""
    if state != "none":
        claim(store, "b", digest=OTHER)
    if state in ("done", "expired"):
        put(store, "b", digest=OTHER)
    now = 170.0 if state == "expired" else 105.0
    what = {"digest": DIGEST, "owner": "a", "now": now, "ttl_s": 60.0, "replace": True}
    assert store.put_result("t", "k", body=BODY, **what) is PutStatus.STORED  # type: ignore[arg-type]
    done = ResultRecord(state=ResultState.DONE, digest=DIGEST, owner="a", until=now + 60.0, body=BODY)
    assert store.get_result("t", "k", now) == done
    assert put(store, "b", now=now, digest=OTHER) is PutStatus.STALE
    assert store.put_result("t", "k", body=b"", **what) is PutStatus.STORED  # type: ignore[arg-type]
    assert store.get_result("t", "k", now) == replace(done, body=b"")


def test_a_result_cannot_be_released(store: SessionStore) -> None:
    claim(store)
    put(store)
    assert store.release_result("t", "k", owner="a") is False
    assert claim(store, "b").status is ClaimStatus.DONE


def test_an_expired_key_says_so_for_as_long_again_and_is_then_forgotten(store: SessionStore) -> None:
    """T2: an expired key says so."""
    claim(store)
    put(store)
    assert claim(store, "b", now=160.9).status is ClaimStatus.DONE
    gone = ResultRecord(state=ResultState.EXPIRED, digest=DIGEST, owner="a", until=221.0)
    assert store.get_result("t", "k", 161.0) == gone
    assert claim(store, "b", now=161.0) == ResultClaim(status=ClaimStatus.EXPIRED, record=gone)
    assert put(store, now=162.0) is PutStatus.STALE
    assert claim(store, "b", now=220.9).status is ClaimStatus.EXPIRED
    assert store.get_result("t", "k", 221.0) is None
    assert claim(store, "b", now=221.0).status is ClaimStatus.CLAIMED


def test_a_claim_lapses_when_its_owner_is_heard_of_no_more(store: SessionStore) -> None:
    """T4: an ingress that died does not block its keys."""
    claim(store)
    assert store.get_result("t", "k", 110.0) is None
    assert claim(store, "b", now=110.0).status is ClaimStatus.CLAIMED
    assert put(store, "a", now=111.0) is PutStatus.STALE
    assert put(store, "b", now=111.0, body=b"b") is PutStatus.STORED
    assert claim(store, "c", now=112.0).record.body == b"b"


def test_an_owner_may_claim_again_to_keep_its_claim(store: SessionStore) -> None:
    claim(store)
    assert claim(store, now=109.0).status is ClaimStatus.CLAIMED
    assert claim(store, "b", now=118.9).status is ClaimStatus.RUNNING
    assert claim(store, "b", now=119.0).status is ClaimStatus.CLAIMED


def test_a_late_result_is_stored_if_nobody_else_ran_it(store: SessionStore) -> None:
    claim(store)
    assert put(store, now=500.0) is PutStatus.STORED
    assert claim(store, "b", now=501.0).status is ClaimStatus.DONE


def test_a_result_may_be_put_again(store: SessionStore) -> None:
    """Whoever got no answer sends it again."""
    claim(store)
    assert [put(store), put(store, now=120.0)] == [PutStatus.STORED] * 2
    record = store.get_result("t", "k", 120.0)
    assert record is not None
    assert record.until == 161.0


def test_keys_are_scoped_by_tenant(store: SessionStore) -> None:
    """S13, T2."""
    claim(store, key="b:k", tenant="a")
    assert claim(store, "x", key="k", tenant="a:b").status is ClaimStatus.CLAIMED
    assert claim(store, "x", key="b:k", tenant="t").status is ClaimStatus.CLAIMED
    assert claim(store, "x", key="b:k", tenant="a").status is ClaimStatus.RUNNING


def test_a_result_that_is_too_large_counts_as_expired(open_store: OpenStore) -> None:
    """T2: under a byte cap; what cannot be replayed is not run twice either."""
    store = open_store(limits=StoreLimits(result_bytes=10))
    claim(store)
    assert put(store, body=b"x" * 11) is PutStatus.TOO_LARGE
    assert claim(store, "b").status is ClaimStatus.EXPIRED
    claim(store, key="k2")
    assert put(store, key="k2", body=b"x" * 10) is PutStatus.STORED


def test_the_oldest_results_make_room_for_new_ones(open_store: OpenStore) -> None:
    store = open_store(limits=StoreLimits(results_bytes=2000))
    for number in range(3):
        claim(store, key=f"k{number}")
        assert put(store, key=f"k{number}", body=b"x" * 600, now=101.0 + number) is PutStatus.STORED
    states = [claim(store, "b", key=f"k{number}", now=105.0).status.value for number in range(3)]
    assert states == ["expired", "done", "done"]
    assert store.figures()["result_bytes"] == 200 + 2 * 800


def test_a_tenants_flood_makes_room_among_its_own(open_store: OpenStore) -> None:
    """S13, T2: nobody loses what is within an even share, however old; beyond it, whoever holds most makes room."""
    store = open_store(limits=StoreLimits(results_bytes=4000))
    for number in range(2):
        assert put(store, key=f"k{number}", body=b"x" * 600, tenant="1:quiet", now=1.0 + number) is PutStatus.STORED
    for number in range(50):
        assert put(store, key=f"k{number}", body=b"x" * 600, tenant="flood", now=10.0 + number) is PutStatus.STORED
    kept = [store.get_result("1:quiet", f"k{number}", 60.0) for number in range(2)]
    assert [one.body if one else b"" for one in kept] == [b"x" * 600] * 2
    last = store.get_result("flood", "k49", 60.0)
    assert last is not None
    assert last.state is ResultState.DONE
    for number in range(2, 5):
        put(store, key=f"k{number}", body=b"x" * 600, tenant="1:quiet", now=61.0)
    for tenant in ("1:quiet", "flood"):
        found = [store.get_result(tenant, f"k{number}", 61.0) for number in range(50)]
        assert sum(one is not None and one.state is ResultState.DONE for one in found) in (2, 3)
    assert store.figures()["result_bytes"] in range(4001)


def test_who_holds_only_claims_is_passed_over(open_store: OpenStore) -> None:
    """T2: what runs stays, whoever it belongs to; the next one makes room."""
    store = open_store(limits=StoreLimits(results_bytes=2000))
    for number in range(7):
        claim(store, key=f"run{number}", tenant="busy")
    for number in range(3):
        put(store, key=f"k{number}", body=b"", now=101.0 + number)
    assert put(store, key="k3", body=b"x" * 200, now=105.0) is PutStatus.STORED
    assert [claim(store, "b", key=f"run{number}", tenant="busy").status.value for number in range(7)] == ["running"] * 7
    assert claim(store, "b", key="k3", now=106.0).status is ClaimStatus.DONE
    assert store.figures()["result_bytes"] == 2000


def test_keys_that_expired_are_forgotten_before_the_cap_is_passed(open_store: OpenStore) -> None:
    store = open_store(limits=StoreLimits(results_bytes=1000))
    for number in range(20):
        claim(store, key=f"k{number}")
        assert put(store, key=f"k{number}", body=b"", now=101.0 + number) is PutStatus.STORED
    assert store.figures()["result_bytes"] == 1000
    assert claim(store, "b", key="k19", now=125.0).status is ClaimStatus.DONE
    assert store.get_result("t", "k0", 125.0) is None


def test_a_running_claim_is_never_dropped_to_make_room(open_store: OpenStore) -> None:
    """T2: never twice."""
    store = open_store(limits=StoreLimits(results_bytes=1000))
    for number in range(10):
        claim(store, key=f"run{number}")
    claim(store, key="k")
    put(store, key="k", body=b"x" * 700)
    assert [claim(store, "b", key=f"run{number}").status.value for number in range(10)] == ["running"] * 10


def test_what_nobody_asks_for_again_goes_with_what_comes_after(store: SessionStore) -> None:
    """An index of times, not a walk over all: each claim sees to a few that are due."""
    for number in range(40):
        claim(store, key=f"k{number}")
        put(store, key=f"k{number}", body=b"x" * 50)
    for number in range(10):
        claim(store, key=f"later{number}", now=10_000.0)
    assert store.figures()["results"] == 10


def test_results_outlive_the_store_that_took_them(open_store: OpenStore) -> None:
    store = open_store()
    claim(store)
    put(store)
    store.shut()
    assert claim(open_store(), "b", now=120.0).record.body == BODY
