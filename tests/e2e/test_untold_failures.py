"""What Ray does not tell of: a step that never returns, and its own control service (GCS) dead for a while, with its
state and the sessions in Redis. On a head and a node."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from tests.cluster.redis_rig import redis_server
from tests.e2e.chaos_rig import Rig, rigged
from tests.e2e.hold_thread import Held, Refused
from tests.e2e.oracles import ToyOracle
from tests.e2e.server import Server, wait_until

PATIENCE = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Ray ends every process that has heard nothing of its control service for so long, this one too: 60 s by default."""
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(PATIENCE not in os.environ, reason=f"`make test-long` sets {PATIENCE}"),
]

DEAD_S = STUCK_S = 3.0
LATE_S = 12.0
"""What a turn may take beyond that on a busy machine. Ray itself would never tell."""
CONFIG: dict[str, Any] = {
    "workers": {"count": 2, "runner": "toy", "toy_step_s": 0.01, "num_cpus": 1},
    "engine": {"kv_tokens": 4096, "check_invariants": True},
    "cluster": {"namespace": "control", "heartbeat_s": 0.2, "suspect_s": 1.0, "dead_s": DEAD_S, "stuck_s": STUCK_S},
}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("untold")
    with (
        redis_server(folder / "redis", "--appendonly", "yes", "--appendfsync", "always") as redis,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_REDIS_ADDRESS", f"127.0.0.1:{redis.port}")
        config = {**CONFIG, "store": {"url": redis.url, "prefix": "control"}}
        with rigged(folder, config, 1, node_cpus=3) as rig:
            yield rig


class Chat:
    """A session whose every answer is known."""

    def __init__(self, server: Server, name: str) -> None:
        self.name = name
        self.turns = 0
        self._server = server
        self._context: list[int] = []

    def body(self, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"{self.name}, turn {self.turns + 1}"}]
        return {"messages": messages, "max_tokens": 8, "temperature": 0, "session": {"id": self.name}, **fields}

    def turn(self, *, create: bool = False) -> str:
        """The worker that answered, on the whole history."""
        body = self.body(session={"id": self.name, "create": create})
        answer = self._server.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        oracle, tree = ToyOracle(), answer.json()
        prompt = oracle.prompt(self._context, body["messages"][0]["content"], named=False)
        output = oracle.output(prompt, 8)
        assert tree["choices"][0]["message"]["content"] == bytes(output).decode()
        self.turns += 1
        assert tree["session"]["turn"] == self.turns
        self._context = [*prompt, *output]
        worker: str = tree["session"]["worker"]
        return worker


def test_a_worker_whose_step_never_returns_is_given_up(rig: Rig) -> None:
    """T3, T4, field case N50: its loop stands still, its actor answers. Within the window it is replaced; what waited
    there runs elsewhere unseen, a stream that had begun ends `worker_lost`, its sessions go on elsewhere with their
    whole history under the next epoch; whoever has to do with the other worker notices nothing."""
    server = rig.server
    chats = [Chat(server, f"stuck-{number}") for number in range(6)]
    owners = {chat.name: chat.turn(create=True) for chat in chats}
    victim = owners["stuck-0"]
    there = [chat for chat in chats if owners[chat.name] == victim]
    (row,) = [row for row in server.workers() if row["id"] == victim]
    assert 2 <= len(there) <= 4, owners
    with server.http.stream("POST", "/v1/chat/completions", json=there[0].body(stream=True, max_tokens=3000)) as stream:
        lines = stream.iter_lines()
        assert any("content" in line and '"content":""' not in line for line in lines)
        try:
            held = Held(row["loop"]["thread"])
        except Refused as why:
            pytest.skip(f"no thread can be held here: {why}")
        began_at = time.monotonic()
        try:
            for chat in chats[1:]:
                assert (chat.turn() == owners[chat.name]) == (chat not in there)
                assert time.monotonic() - began_at < STUCK_S + LATE_S
            (error,) = [orjson.loads(line[6:])["error"] for line in lines if '"error"' in line]
        finally:
            held.release()
    assert (error["reason"], error["retryable"]) == ("worker_lost", True)
    assert there[0].turn() != victim
    deaths = {death["worker"]: death["cause"] for death in server.stats()["pool"]["deaths"]}
    assert "a step has not returned" in deaths[victim]
    for chat in chats:
        assert server.session(chat.name)["epoch"] == 1 + (chat in there)
    wait_until(lambda: states(server) == ["ready"] * 2, 60)
    wait_until(lambda: not os.path.exists(f"/proc/{row['pid']}"), 30)


def test_the_cluster_goes_on_while_the_control_service_is_away_and_scales_when_it_is_back(rig: Rig) -> None:
    """T3, T4, T6, P1, field case N48: turns go on; new sessions open; a worker that dies meanwhile is given up by the
    pool's own clock, and its sessions go on elsewhere under the next epoch, the others under the same; afterwards it is
    replaced, scaling works, and no worker is there twice."""
    from cluster.ray_names import NAME_PREFIX, actor_names

    server = rig.server
    chats = [Chat(server, f"control-{number}") for number in range(4)]
    owners = {chat.name: chat.turn(create=True) for chat in chats}
    pids = {row["id"]: row["pid"] for row in server.workers()}
    lost = owners["control-0"]
    rig.cluster.head_node.kill_gcs_server(check_alive=False)
    for _ in range(3):
        assert {chat.name: chat.turn() for chat in chats} == owners
    chats.append(Chat(server, "meanwhile"))
    owners["meanwhile"] = chats[-1].turn(create=True)
    os.kill(pids[lost], signal.SIGKILL)
    for chat in chats:
        began_at = time.monotonic()
        assert (chat.turn() == owners[chat.name]) == (owners[chat.name] != lost)
        assert time.monotonic() - began_at < DEAD_S + LATE_S
    rig.cluster.head_node.start_gcs_server()
    wait_until(lambda: states(server) == ["ready"] * 2, 60)
    rig.scale(3)
    wait_until(lambda: states(server) == ["ready"] * 3, 60)
    for chat in chats:
        chat.turn()
        info = server.session(chat.name)
        assert (info["turns"], info["epoch"]) == (chat.turns, 1 + (owners[chat.name] == lost))
    names = [name for name in actor_names(CONFIG["cluster"]["namespace"]) if "worker-" in name]
    assert sorted(names) == sorted(NAME_PREFIX + row["id"] for row in server.workers())


def states(server: Server) -> list[str]:
    return [row["state"] for row in server.stats()["workers"] if row["state"] != "dead"]
