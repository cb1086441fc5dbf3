"""Many sessions on several workers, on simulated time: who has them, who takes them over, and when clocks ring."""

from __future__ import annotations

from random import Random

import pytest

from actors.messages import OnBusy, Outcome, Reason
from tests.sim.cluster import SimCluster, prompt_of
from tests.sim.ingress import Call

ROOM = {"page_size": 16, "kv_tokens": 4096, "max_step_tokens": 64}


def turn_of_each(cluster: SimCluster, sessions: list[str], name: str) -> dict[str, Call]:
    """A turn in every session; none of them may fail."""
    calls = {}
    for session_id in sessions:
        calls[session_id] = cluster.request(f"{name} {session_id}", prompt_of(session_id, 6), 4, session_id=session_id)
        cluster.run(0.005)
    cluster.settle()
    failed = [call.ends[0] for call in calls.values() if call.ends[0].outcome is Outcome.ABORT]
    assert not failed
    return calls


def owners(cluster: SimCluster) -> dict[str, str]:
    return {record.session_id: record.owner for record in cluster.store.list_sessions("t", limit=1000)}


def opened(cluster: SimCluster, sessions: list[str]) -> list[str]:
    for session_id in sessions:
        cluster.open(session_id)
        cluster.run(0.05)
    return sessions


@pytest.mark.parametrize("kind", ["alike", "random"])
def test_ids_that_look_alike_are_spread_as_others_are(kind: str) -> None:
    """P1, P2, field case N41, with 48 of each kind: a worker is chosen by its load, whatever the id; the
    second turn goes where the first one went."""
    cluster = SimCluster(workers=4, **ROOM)
    cluster.run(0.3)
    random = Random(41)
    names = [f"session-{number}" if kind == "alike" else f"{random.getrandbits(64):x}" for number in range(1, 49)]
    sessions = opened(cluster, names)
    turn_of_each(cluster, sessions, "first")
    before = owners(cluster)
    shares = [list(before.values()).count(worker) for worker in cluster.workers]
    assert all(10 <= share <= 14 for share in shares), shares
    for session_id, call in turn_of_each(cluster, sessions, "second").items():
        assert call.worker == before[session_id]
        assert call.ends[0].cached_tokens >= 9, "T - 1 of the first turn"
    cluster.finish()


def test_one_more_worker_moves_nobody_and_one_fewer_only_its_own() -> None:
    """P1, T5, field case N40, with a tenth of its sessions."""
    cluster = SimCluster(workers=4, **ROOM)
    cluster.run(0.3)
    sessions = opened(cluster, [f"s{number}" for number in range(40)])
    turn_of_each(cluster, sessions, "first")
    before = owners(cluster)
    cluster.add_worker()
    cluster.run(0.5)
    for call in turn_of_each(cluster, sessions, "second").values():
        assert call.ends[0].cached_tokens in (10, 9)
    assert owners(cluster) == before
    cluster.drain("w2", grace_s=5.0)
    cluster.run(1.0)
    assert not cluster.workers["w2"].alive
    for session_id, call in turn_of_each(cluster, sessions, "third").items():
        assert call.ends[0].prompt_tokens == 26
        assert (call.ends[0].cached_tokens in (20, 19)) == (before[session_id] != "w2")
    moved = {session_id for session_id, owner in owners(cluster).items() if owner != before[session_id]}
    assert moved == {session_id for session_id, owner in before.items() if owner == "w2"}
    cluster.finish()


def test_a_rolling_restart_of_all_workers_fails_nobody() -> None:
    """T5, T6, field case N51 (the engine's part: the workers, on simulated time): each worker is drained once its
    replacement is ready, while turns and plain requests go on."""
    cluster = SimCluster(workers=3, max_context=1024, **ROOM)
    cluster.run(0.3)
    sessions = opened(cluster, [f"s{number}" for number in range(12)])
    random = Random(51)
    names = 0
    for old in list(cluster.workers):
        cluster.add_worker()
        cluster.run(0.5)
        cluster.drain(old, grace_s=10.0)
        for _ in range(60):
            names += 1
            fields = {"session_id": random.choice(sessions), "on_busy": OnBusy.QUEUE} if names % 3 else {}
            cluster.request(f"c{names}", prompt_of(f"c{names}", 5), random.choice((1, 4, 20)), **fields)
            cluster.run(random.choice((0.0, 0.02, 0.05)))
        cluster.settle()
        cluster.run(1.0)
        assert not cluster.workers[old].alive
    ends = [call.ends[0] for call in cluster.calls.values()]
    assert [end for end in ends if end.outcome is Outcome.ABORT] == []
    turn_of_each(cluster, sessions, "last")
    assert set(owners(cluster).values()) <= {"w4", "w5", "w6"}
    cluster.finish()


def test_clocks_ring_on_every_worker_by_itself() -> None:
    """C1, C3, C4, session case T13: load that straddles the deadline on several workers: nobody hangs, and each request
    ends at its own instant, within a step."""
    cluster = SimCluster(workers=3, ingresses=2, max_running=2)
    cluster.run(0.3)
    deadline_s, began, ended = 0.3, {}, {}

    def run(seconds: float) -> None:
        until = cluster.timeline.now + seconds
        while cluster.timeline.now < until and len(ended) < 60:
            cluster.timeline.step()
            over = [name for name, call in cluster.calls.items() if call.over and name not in ended]
            ended.update(dict.fromkeys(over, cluster.timeline.now))

    for number in range(60):
        name = f"c{number}"
        began[name] = cluster.timeline.now
        length = (2, 12, 60)[number % 3]
        cluster.request(name, prompt_of(name, 8), length, via=f"i{number % 2 + 1}", deadline_s=deadline_s)
        run(0.01)
    run(5.0)
    assert len(ended) == 60
    reasons = [call.ends[0].reason for call in cluster.calls.values()]
    assert set(reasons) == {None, Reason.DEADLINE}
    for name, call in cluster.calls.items():
        if call.ends[0].reason is Reason.DEADLINE:
            assert ended[name] - began[name] <= deadline_s + 0.05
    cluster.finish()


def test_loads_are_zero_after_a_storm_and_a_newcomer_gets_its_share() -> None:
    """P2, E1: field case N15 (the engine's part): abandoned streams, a full queue and a death leave no load, so that a
    new worker gets about as many new sessions as the others, and not nearly all."""
    cluster = SimCluster(workers=3, ingresses=2, max_running=4, max_waiting=8, replace_dead=True, **ROOM)
    cluster.run(0.3)
    random = Random(15)
    for number in range(120):
        name = f"c{number}"
        cluster.request(name, prompt_of(name, 8), 100, via=f"i{number % 2 + 1}")
        cluster.run(random.choice((0.0, 0.01)))
        gone = f"c{random.randint(0, number)}"
        cluster.ingress_of(cluster.calls[gone]).disconnect(gone)
        if number == 60:
            cluster.kill_worker("w2")
    for name, call in cluster.calls.items():
        cluster.ingress_of(call).disconnect(name)
    cluster.settle()
    reasons = {end[1] for worker in cluster.workers.values() for end in worker.engine.snapshot().ends}
    assert {"client_disconnect", "queue_full"} <= reasons
    cluster.run(1.0)
    assert [worker.load for worker in cluster.pool.members.ready()] == [0, 0, 0]
    cluster.add_worker()
    cluster.run(0.5)
    opened(cluster, [f"s{number}" for number in range(40)])
    shares = [list(owners(cluster).values()).count(worker) for worker in ("w1", "w3", "w4", "w5")]
    assert sum(shares) == 40
    assert all(7 <= share <= 13 for share in shares), shares
    cluster.finish()
