"""A worker is cut off from its pool, its store and its clients, by a network that drops everything.

python -m tests.e2e.partition_story FOLDER [twice] [redis]      in a namespace that tests.e2e.netns made

Near: the head with pool, store and ingress, and a worker. Far: a node with the other worker. At first the cable is cut
for longer than `dead_s`, and mended before Ray has given the node up: the worker that comes back was replaced long ago,
and does not know it. With `twice`, then for so long that Ray gives up the node. Exit status 0 if all that must hold
did.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.redis_rig import redis_server
from tests.e2e.answers import error_of, streamed, text_of, usage_of
from tests.e2e.census import take
from tests.e2e.chaos_clients import extra
from tests.e2e.chaos_rig import Rig, rigged
from tests.e2e.netns import NEAR, two_networks
from tests.e2e.oracles import ToyOracle
from tests.e2e.raw_http import Answer, RawClient

STEP_S, DEAD_S, INGRESS_LEASE_S = 0.05, 2.0, 1.0
LATE_S = 3.0
"""What a turn may take beyond `dead_s` when its worker cannot be reached: to be placed anew, and to run."""
LONG, SHORT = 60, 16
"""Tokens of turns that run when the cable is cut. The long ones end with the ingress's lease, the short one is over
before that: its commit is under way when nothing gets through."""
RAY_GIVES_UP_S = 30.0
CONFIG: dict[str, Any] = {
    "workers": {"count": 1, "runner": "toy", "toy_step_s": STEP_S, "num_cpus": 1},
    "engine": {"kv_tokens": 8192, "check_invariants": True},
    "sessions": {"idle_timeout_s": 0.0},
    "store": {"commit_timeout_s": 10.0},
    "cluster": {
        "namespace": "partition",
        "heartbeat_s": 0.2,
        "suspect_s": 0.8,
        "dead_s": DEAD_S,
        "ingress_lease_s": INGRESS_LEASE_S,
        "pool_lease_s": 30.0,
    },
}


@dataclass
class Session:
    """What its client knows of it: `told` are the acknowledged turns as (rid, words, text)."""

    name: str
    context: list[int] = field(default_factory=list)
    told: list[tuple[str, str, str]] = field(default_factory=list)


class Story:
    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.http = RawClient("127.0.0.1", rig.server.port)
        self.oracle = ToyOracle()
        self.began_at = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began_at:6.1f} s  {text}", flush=True)

    async def open_all(self, names: Iterable[str]) -> list[Session]:
        """Each with a turn behind it."""
        sessions = [Session(name) for name in names]
        for session in sessions:
            answer = await self.http.call("POST", "/v1/sessions", {"id": session.name})
            assert answer.status == 200, answer.body
        await asyncio.gather(*(self.turn(session) for session in sessions))
        return sessions

    async def turn(self, session: Session, max_tokens: int = 8, **fields: Any) -> Answer:
        """A turn that must succeed, on the whole history."""
        rid, body = self.body(session, max_tokens, **fields)
        answer = await self.http.call("POST", "/v1/chat/completions", body)
        self.check(session, rid, body, answer)
        return answer

    def sent(self, body: dict[str, Any]) -> asyncio.Task[Answer]:
        return asyncio.create_task(self.http.call("POST", "/v1/chat/completions", body))

    def body(self, session: Session, max_tokens: int, **fields: Any) -> tuple[str, dict[str, Any]]:
        rid = f"{session.name}/{len(session.told) + 1}"
        words = f"{rid} says hello"
        body = {
            "messages": [{"role": "user", "content": words}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "session": {"id": session.name},
            "rid": rid,
            "stream_options": {"include_usage": True} if fields.get("stream") else None,
            **fields,
        }
        return rid, {name: value for name, value in body.items() if value is not None}

    def expected(self, session: Session, body: dict[str, Any]) -> tuple[list[int], str]:
        prompt = self.oracle.prompt(session.context, body["messages"][0]["content"], named=False)
        return prompt, bytes(self.oracle.output(prompt, body["max_tokens"])).decode()

    def check(self, session: Session, rid: str, body: dict[str, Any], answer: Answer) -> None:
        """T6: the answer that the whole history has, as the turn that comes after the last."""
        assert answer.status == 200, answer.body
        assert error_of(answer) is None, answer.body
        prompt, text = self.expected(session, body)
        assert usage_of(answer)["prompt_tokens"] == len(prompt), answer.body
        assert text_of(answer) == text, (text_of(answer), text)
        assert extra(answer, "session")["turn"] == len(session.told) + 1
        session.told.append((rid, body["messages"][0]["content"], text))
        session.context = [*prompt, *text.encode()]

    async def info(self, session: Session) -> dict[str, Any]:
        answer = await self.http.call("GET", f"/v1/sessions/{session.name}")
        assert answer.status == 200, answer.body
        return dict(answer.tree)

    async def account(self, sessions: list[Session]) -> None:
        """T1, T2: what was told is there, each turn once, and told again as it was."""
        await asyncio.gather(*(self._account(session) for session in sessions))

    async def _account(self, session: Session) -> None:
        info = await self.info(session)
        assert (info["turns"], info["tokens"]) == (len(session.told), len(session.context)), info
        for rid, words, text in session.told:
            body = self.body(session, len(text))[1] | {"rid": rid, "messages": [{"role": "user", "content": words}]}
            answer = await self.http.call("POST", "/v1/chat/completions", body)
            assert answer.status == 200, answer.body
            assert extra(answer, "replayed"), answer.body
            assert text_of(answer) == text

    async def states(self) -> dict[str, str]:
        """Workers that the pool counts on."""
        answer = await self.http.call("GET", "/v1/stats")
        return {row["id"]: row["state"] for row in answer.tree["workers"] if row["state"] != "dead"}

    async def rows(self) -> dict[str, dict[str, Any]]:
        answer = await self.http.call("GET", "/v1/stats")
        return {row["id"]: row for row in answer.tree["workers"] if "pages" in row}

    async def until(self, what: str, holds: Callable[[], Awaitable[bool] | bool], within_s: float) -> float:
        """Seconds until it held. Raises AssertionError."""
        began_at = time.monotonic()
        while not await _told(holds):
            assert time.monotonic() - began_at < within_s, f"{what}: not within {within_s:.0f} s"
            await asyncio.sleep(0.05)
        took_s = time.monotonic() - began_at
        self.say(f"{what} ({took_s:.1f} s)")
        return took_s

    async def two_ready(self, but: set[str]) -> bool:
        states = await self.states()
        return list(states.values()) == ["ready"] * 2 and not but & set(states)

    async def far_worker(self) -> tuple[str, int]:
        """Id and process of the worker on the far node."""
        far = [(name, row["pid"]) for name, row in (await self.rows()).items() if self.rig.is_far(row["pid"])]
        assert len(far) == 1, far
        return far[0]


async def story(rig: Rig, *, twice: bool) -> None:
    at = Story(rig)
    await asyncio.to_thread(rig.scale, 2)
    await at.until("a worker on each side", lambda: at.two_ready(set()), 60)
    sessions: list[Session] = []
    far, _ = await at.far_worker()
    while not sessions or min(map(len, await _sides(at, sessions, far))) < 4:
        assert len(sessions) < 24, "new sessions go where there is most room (P2)"
        sessions += await at.open_all(f"s{len(sessions) + number}" for number in range(4))
    former = await cut_until_the_pool_has_given_up(at, sessions)
    if twice:
        assert await cut_until_ray_has_given_up(at, sessions) != former
    await asyncio.gather(*(at.turn(session) for session in sessions))
    await at.account(sessions)
    for session in sessions:
        assert (await at.http.call("DELETE", f"/v1/sessions/{session.name}")).status == 200
    await at.until("nothing is held any more", lambda: _rests(at), 40)


async def cut_until_the_pool_has_given_up(at: Story, sessions: list[Session]) -> str:
    """T3, T4: the far worker lives through it, with turns that run, and comes back too late. Its name."""
    far, pid = await at.far_worker()
    there, here = await _sides(at, sessions, far)
    unary, failing, resumed, committing, *_ = there
    turns = {
        session.name: at.body(session, LONG, **fields)
        for session, fields in (
            (unary, {}),
            (failing, {"stream": True}),
            (resumed, {"stream": True, "on_worker_lost": "resume"}),
            (here[0], {}),
        )
    }
    running = {name: at.sent(body) for name, (_, body) in turns.items()}
    await at.until("three turns run there", lambda: _runs(at, far, 3), 10)
    await asyncio.sleep(STEP_S * 10)  # So that the streams have shown something.
    turns[committing.name] = at.body(committing, SHORT)
    running[committing.name] = at.sent(turns[committing.name][1])
    await at.until("and a short one", lambda: _runs(at, far, 4), 10)
    at.rig.networks.cut()
    cut_at = time.monotonic()
    at.say("cut")
    await at.turn(here[1])
    assert time.monotonic() - cut_at < DEAD_S, "who has nothing to do with the far side waits for nothing"
    answers = dict(zip(running, await asyncio.gather(*running.values()), strict=True))
    took_s = time.monotonic() - cut_at
    at.say(f"every turn has its answer {took_s:.1f} s after the cut")
    assert took_s < DEAD_S + LATE_S + LONG * STEP_S
    for session in (unary, resumed, committing, here[0]):
        at.check(session, *turns[session.name], answers[session.name])
    _check_failed(at, failing, turns[failing.name][1], answers[failing.name])
    assert far not in await at.states()
    await asyncio.gather(*(at.turn(session) for session in there))
    for session in there:
        assert (await at.info(session))["epoch"] == 2
        assert (await at.info(session))["worker"] != far
    assert (await at.info(here[0]))["epoch"] == 1, "who was not there stays where it is (P1)"
    await at.until("the worker that was cut off has ended its requests", lambda: _said(at, pid, "its requests end"), 10)
    assert not _gone(pid), "it lives: what comes now would prove nothing otherwise"
    at.rig.networks.heal()
    at.say("healed")
    await at.until("the late worker is gone", lambda: _gone(pid), 20)
    await at.until("another took its place", lambda: at.two_ready({far}), 30)
    _check_actors(await at.states())
    assert at.rig.far_node.starts == 1
    await at.account(sessions)
    return far


async def cut_until_ray_has_given_up(at: Story, sessions: list[Session]) -> str:
    """T4: the node itself is declared dead: it ends when it learns of that, and joins anew. The name of the worker."""
    far, pid = await at.far_worker()
    fresh = await at.open_all(f"fresh{number}" for number in range(4))
    sessions += fresh
    there, _ = await _sides(at, fresh, far)
    assert there, "new sessions go where there is most room (P2)"
    at.rig.networks.cut()
    at.say("cut")
    await asyncio.gather(*(at.turn(session) for session in there))
    assert far not in await at.states()
    await at.until("Ray has given up the node", lambda: _nodes(1), RAY_GIVES_UP_S)
    at.rig.networks.heal()
    at.say("healed")
    await at.until("the worker of the dead node is gone", lambda: _gone(pid), 30)
    await at.until("the node has joined anew", lambda: _nodes(2), 40)
    await at.until("with another worker", lambda: at.two_ready({far}), 40)
    _check_actors(await at.states())
    for session in there:
        assert (await at.info(session))["epoch"] == 2
    return far


# -- looks -------------------------------------------------------------------------------------------------------------


async def _told(holds: Callable[[], Awaitable[bool] | bool]) -> bool:
    answer = holds()
    return answer if isinstance(answer, bool) else await answer


async def _sides(at: Story, sessions: list[Session], far: str) -> tuple[list[Session], list[Session]]:
    """Sessions that the far worker has, and the others."""
    owners = {session.name: (await at.info(session))["worker"] for session in sessions}
    return (
        [session for session in sessions if owners[session.name] == far],
        [session for session in sessions if owners[session.name] != far],
    )


def _check_failed(at: Story, session: Session, body: dict[str, Any], answer: Answer) -> None:
    """T4: it had shown tokens, and did not ask to be resumed: a retryable error, behind a right beginning."""
    error = error_of(answer)
    assert streamed(answer), answer.body
    assert error is not None, answer.body
    assert (error["reason"], error["retryable"]) == ("worker_lost", True), error
    shown = "".join(event["choices"][0]["delta"].get("content", "") for event in answer.events if event.get("choices"))
    assert shown
    assert at.expected(session, body)[1].startswith(shown)


async def _runs(at: Story, worker: str, count: int) -> bool:
    return bool((await at.rows())[worker]["running"] == count)


def _gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def _rests(at: Story) -> bool:
    census = await take(at.http)
    return not [*census.unrest(), *census.closed()]


def _said(at: Story, pid: int, words: str) -> bool:
    logs = Path(at.rig.cluster.head_node.get_logs_dir_path())
    return any(words in path.read_text(errors="replace") for path in logs.glob(f"worker-*-{pid}.err"))


def _nodes(count: int) -> bool:
    import ray

    return sum(node["Alive"] for node in ray.nodes()) == count


def _check_actors(states: dict[str, str]) -> None:
    """No actor is left of a worker that the pool does not know."""
    from cluster.ray_names import NAME_PREFIX, actor_names

    names = {name.removeprefix(NAME_PREFIX) for name in actor_names(CONFIG["cluster"]["namespace"])}
    assert {name for name in names if name.startswith("worker-")} == set(states), (names, states)


@contextmanager
def apart(folder: Path, *, over_redis: bool) -> Iterator[Rig]:
    config = {**CONFIG, "store": dict(CONFIG["store"])}
    with ExitStack() as stack:
        networks = stack.enter_context(two_networks())
        if over_redis:
            redis = redis_server(folder, "--appendonly", "yes", "--appendfsync", "always", password="p", host=NEAR)
            config["store"]["url"] = stack.enter_context(redis).url
        yield stack.enter_context(rigged(folder, config, 0, networks=networks, head_cpus=1, far_cpus=1))


def main() -> int:
    with apart(Path(sys.argv[1]), over_redis="redis" in sys.argv[2:]) as rig:
        asyncio.run(story(rig, twice="twice" in sys.argv[2:]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
