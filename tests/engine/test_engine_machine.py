"""Random driving: every message and fault in any order, against a plain model of what sessions should hold.

After every verb the driver checks conservation, one end per request, and no token after it. Here besides: each
turn's text equals that of its plain prompt on a fresh engine, and history equals the model's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.engine.plan import NUM_RESERVED_PAGES
from actors.messages import (
    CloseSession,
    Grammar,
    GrammarKind,
    OnBusy,
    Outcome,
    Pause,
    PauseMode,
    Reason,
    Resume,
    SessionMode,
)
from tests.engine.driver import Driver, Told, expected, expected_under

pytestmark = pytest.mark.timeout(900)
EXAMPLES = int(os.environ.get("REMORA_MACHINE_EXAMPLES", "60"))
STEPS = int(os.environ.get("REMORA_MACHINE_STEPS", "60"))
NAMES = ("s0", "s1", "s2")
GRAMMARS = (
    Grammar(kind=GrammarKind.REGEX, text="[a-f]{2,8}"),
    Grammar(kind=GrammarKind.CHOICE, text='["yes", "no"]'),
    Grammar(kind=GrammarKind.EBNF, text="root ::= root"),
)


@dataclass
class Node:
    """A committed turn of the model: the whole context, and the rid it continues from."""

    context: list[int]
    parent: str | None
    output: int


@dataclass
class ModelSession:
    mode: SessionMode
    nodes: dict[str, Node] = field(default_factory=dict)
    head: str | None = None


class EngineMachine(RuleBasedStateMachine):
    driver_class = Driver
    """A soak run counts with its own."""

    @initialize(
        depth=st.sampled_from([0, 1]),
        page_size=st.sampled_from([1, 4, 16, 64]),
        pages=st.integers(12, 40),
        chunk=st.sampled_from([3, 8, 64]),
        prefix_cache=st.booleans(),
        hibernate_below=st.sampled_from([0.0, 0.5, 1.0]),
        forecast=st.booleans(),
        worth_sharing_tokens=st.sampled_from([2, 128]),
        max_context=st.sampled_from([512, 1500]),
    )
    def begin(self, page_size: int, pages: int, chunk: int, **settings: Any) -> None:
        self.driver = self.driver_class(
            page_size=page_size,
            kv_tokens=pages * page_size,
            max_step_tokens=chunk,
            max_running=4,
            max_waiting=12,
            max_queued_turns=2,
            **settings,
        )
        self.sessions: dict[str, ModelSession] = {}
        self.turns: dict[str, tuple[str, dict]] = {}
        self.plain: dict[str, list[int]] = {}
        self.constrained: dict[str, tuple[Grammar, list[int]]] = {}
        self.joined: dict[str, str] = {}
        self.judged: set[str] = set()
        self.count = 0
        self.open("s0", False, None)
        self.open("s1", True, None)

    # -- rules -----------------------------------------------------------------------------------------------------

    @rule(prompt=st.lists(st.integers(0, 255), min_size=1, max_size=12), num=st.integers(0, 9), extra=st.booleans())
    def plain_request(self, prompt: list[int], num: int, extra: bool) -> None:
        key = self._key("p")
        self.plain[key] = prompt
        fields = {"deadline_s": 0.2} if extra else {}
        self.driver.submit(key, prompt, num, priority=self.count % 3, **fields)

    @rule(
        prompt=st.lists(st.integers(0, 255), min_size=1, max_size=12),
        num=st.integers(0, 9),
        grammar=st.sampled_from(GRAMMARS),
    )
    def constrained_request(self, prompt: list[int], num: int, grammar: Grammar) -> None:
        key = self._key("g")
        self.constrained[key] = (grammar, prompt)
        self.driver.submit(key, prompt, num, grammar=grammar, waiting_timeout_s=0.3)

    @rule(held=st.booleans())
    def grammar_pace(self, held: bool) -> None:
        self.driver.hold_grammars = held
        while self.driver.grammars.held and not held:
            self.driver.answer_grammar()

    @precondition(lambda self: self.driver.grammars.held)
    @rule(timed_out=st.booleans())
    def grammar_answers(self, timed_out: bool) -> None:
        self.driver.answer_grammar(timed_out=timed_out)

    @rule(name=st.sampled_from(NAMES), tree=st.booleans(), timeout=st.sampled_from([None, 0.3]))
    def open(self, name: str, tree: bool, timeout: float | None) -> None:
        if ("t", name) in self.driver.store:
            return
        mode = SessionMode.TREE if tree else SessionMode.STREAMING
        self.sessions[name] = ModelSession(mode)
        self.driver.open(name, mode, idle_timeout_s=timeout)

    @rule(
        data=st.data(),
        name=st.sampled_from(NAMES),
        prompt=st.lists(st.integers(0, 255), max_size=6),
        num=st.integers(0, 8),
        on_busy=st.sampled_from(list(OnBusy)),
        replacing=st.booleans(),
        offset=st.sampled_from([None, None, None, 2, -1]),
        drop=st.booleans(),
    )
    def turn(
        self,
        data: st.DataObject,
        name: str,
        prompt: list[int],
        num: int,
        on_busy: OnBusy,
        replacing: bool,
        offset: int | None,
        drop: bool,
    ) -> None:
        if ("t", name) not in self.driver.store:
            return
        session = self.sessions[name]
        fields: dict = {"on_busy": on_busy}
        if session.mode is SessionMode.TREE:
            live = [rid for rid, (of, _) in self.turns.items() if of == name]
            parent = data.draw(st.sampled_from(["head", None, *live[-5:]]))
            fields |= {"replace": replacing, "offset": offset, "drop_previous_output": drop}
            if parent != "head":
                fields["parent"] = parent
        key = self._key("t")
        self.turns[key] = (name, fields | {"prompt": prompt, "num": num})
        self.driver.turn(key, prompt, num, session_id=name, **fields)

    @rule(data=st.data(), source=st.sampled_from(NAMES), name=st.sampled_from(NAMES))
    def fork(self, data: st.DataObject, source: str, name: str) -> None:
        row = self.driver.store.get(("t", source))
        if row is None or not row.turns or ("t", name) in self.driver.store:
            return
        turn = data.draw(st.sampled_from([None, *(turn.rid for turn in row.turns)]))
        self.sessions[name] = ModelSession(self.sessions[source].mode)
        self.driver.fork(name, turn, source)

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def rollback(self, data: st.DataObject, name: str) -> None:
        row = self.driver.store.get(("t", name))
        if row is None or not row.turns:
            return
        turn = data.draw(st.sampled_from(["unknown", *(turn.rid for turn in row.turns)]))
        before = {known.rid: known.parent for known in row.turns}
        answer = self.driver.rollback(turn, name)
        if answer is None or answer.reason is not None:
            assert answer is None or turn == "unknown" or answer.reason is not Reason.PARENT_UNKNOWN
            return
        left = [rid for rid in before if rid == turn or turn not in _ancestors(before, rid)]
        info = self.driver.info(name)
        assert [known.rid for known in row.turns] == left
        assert (answer.dropped, info.turns, info.head) == (len(before) - len(left), len(left), turn)
        assert info.tokens == len(self._context({known.rid: known for known in row.turns}, turn))

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.driver.step()

    @rule()
    def settle(self) -> None:
        """Long enough for whatever runs to end, and for sessions to become idle."""
        for _ in range(60):
            self.driver.step(0.001)

    @rule(share=st.sampled_from([0.5, 0.9]), token=st.integers(0, 255))
    def crowd(self, share: float, token: int) -> None:
        """A request that needs so much of the cache that idle sessions have to go."""
        key = self._key("p")
        settings = self.driver.engine.settings
        room = (settings.num_pages - NUM_RESERVED_PAGES) * settings.page_size
        self.plain[key] = [token] * int(room * share)
        self.driver.submit(key, self.plain[key], 1)
        self.settle()

    @rule(name=st.sampled_from(NAMES), length=st.integers(4, 40))
    def talk(self, name: str, length: int) -> None:
        """A turn that is long enough to fill pages, and its end."""
        if ("t", name) in self.driver.store:
            key = self._key("t")
            prompt = [self.count % 256] * length
            self.turns[key] = (name, {"prompt": prompt, "num": 4})
            self.driver.turn(key, prompt, 4, session_id=name)
            self.settle()

    @rule(name=st.sampled_from(NAMES[:2]), length=st.integers(4, 40), steps=st.integers(0, 3))
    def come_back(self, name: str, length: int, steps: int) -> None:
        """A session that was crowded out goes on; what becomes of its turn is left to the rules that follow."""
        self.calm()
        self.open(name, False, None)
        self.talk(name=name, length=length)
        self.crowd(share=0.9, token=self.count % 256)
        if ("t", name) in self.driver.store:
            key = self._key("t")
            self.turns[key] = (name, {"prompt": [1], "num": 6})
            self.driver.turn(key, [1], 6, session_id=name, waiting_timeout_s=0.3)
            for _ in range(steps):
                self.driver.step()

    @rule(name=st.sampled_from(NAMES[:2]), length=st.integers(16, 40), steps=st.integers(0, 3))
    def come_back_slowly(self, name: str, length: int, steps: int) -> None:
        """Its KV is still being read when the next rule comes."""
        self.calm()
        self.open(name, False, None)
        self.talk(name=name, length=length)
        self.crowd(share=0.9, token=self.count % 256)
        self.driver.hold_kv = True
        if ("t", name) in self.driver.store:
            key = self._key("t")
            self.turns[key] = (name, {"prompt": [1], "num": 6})
            self.driver.turn(key, [1], 6, session_id=name)
            for _ in range(steps):
                self.driver.step()

    @rule()
    def calm(self) -> None:
        """Whatever was held back comes, whatever runs ends, and nothing is in the way of copies."""
        self.driver.kv.room, self.driver.kv.harmed = 10**9, set()
        self.driver.hold_store = self.driver.hold_grammars = self.driver.hold_kv = False
        self._answer_all()
        self.driver.handle(Resume())
        self.driver.run(5000)

    @rule(mode=st.sampled_from(list(PauseMode)), steps=st.integers(0, 3), goes_on=st.sampled_from([True, True, False]))
    def pause(self, mode: PauseMode, steps: int, goes_on: bool) -> None:
        """Nothing is planned for a while; sometimes for as long as it takes somebody to let it go on."""
        self.driver.handle(Pause(mode=mode))
        for _ in range(steps):
            self.driver.step()
        assert self.driver.engine.plan(self.driver.now) is None
        if goes_on:
            self.driver.handle(Resume())

    @precondition(lambda self: self.driver.engine.core.paused)
    @rule()
    def resume(self) -> None:
        self.driver.handle(Resume())

    @rule()
    def launch_only(self) -> None:
        self.driver.launch()

    @precondition(lambda self: self.driver.launched)
    @rule()
    def commit_only(self) -> None:
        self.driver.commit()

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        keys = [key for key, told in self.driver.told.items() if told.end is None]
        if keys:
            self.driver.abort(rids=(data.draw(st.sampled_from(keys)),))

    @rule(name=st.sampled_from(NAMES))
    def abort_session(self, name: str) -> None:
        self.driver.abort(session_id=name)

    @rule(number=st.integers(1, 3))
    def abort_before_submit(self, number: int) -> None:
        self.driver.abort(keys=(f"t{self.count + number}",))

    @rule(data=st.data())
    def join(self, data: st.DataObject) -> None:
        """Somebody sends a running request again, and wants to hear it, too."""
        live = [key for key, told in self.driver.told.items() if told.end is None and key not in self.joined]
        if live:
            leader, key = data.draw(st.sampled_from(live)), self._key("j")
            self.joined[key] = leader
            self.driver.told[key] = Told()
            self.driver.sent[key] = replace(self.driver.sent[leader], key=key, join=True)
            self.driver.handle(self.driver.sent[key])

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A client closes its socket: only this attempt is meant, not who else listens."""
        keys = [key for key, told in self.driver.told.items() if told.end is None]
        if keys:
            self.driver.abort(keys=(data.draw(st.sampled_from(keys)),), reason=Reason.CLIENT_DISCONNECT)

    @rule(data=st.data())
    def deliver_again(self, data: st.DataObject) -> None:
        """The network delivers a request twice, the second time whenever it likes."""
        if self.driver.sent:
            self.driver.handle(self.driver.sent[data.draw(st.sampled_from(sorted(self.driver.sent)))])

    @rule(name=st.sampled_from(NAMES))
    def stale_close(self, name: str) -> None:
        """A close of an earlier session of this id arrives late."""
        row = self.driver.store.get(("t", name))
        generation = row.record.generation - 1 if row else 0
        assert not self.driver.ask(CloseSession, session_id=name, generation=generation).known

    @rule(name=st.sampled_from(NAMES), abort_running=st.booleans())
    def close(self, name: str, abort_running: bool) -> None:
        self.driver.close(name, abort_running=abort_running)

    @rule(dt=st.sampled_from([0.05, 0.4]))
    def clock_jump(self, dt: float) -> None:
        self.driver.tick(dt)

    @rule()
    def flush(self) -> None:
        assert self.driver.ask_flush() >= 0

    @rule(held=st.booleans(), room=st.sampled_from([0, 1, 3, 1000]), harmed=st.sampled_from([0, 1, 2, 1000]))
    def kv_pace(self, held: bool, room: int, harmed: int) -> None:
        """Copies of KV take their time, find little room, or find a page of each image harmed."""
        self.driver.kv.room, self.driver.kv.harmed = room, {harmed}
        self.driver.hold_kv = held
        while self.driver.kv.held and not held:
            self.driver.answer_kv()

    @precondition(lambda self: self.driver.kv.held)
    @rule()
    def kv_answers(self) -> None:
        self.driver.answer_kv()

    @precondition(lambda self: self.driver.kv.images)
    @rule(data=st.data())
    def kv_is_lost(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.driver.kv.images)))
        pages = data.draw(st.integers(0, len(self.driver.kv.images[session])))
        self.driver.handle(self.driver.kv.lose(session, pages))

    @rule(held=st.booleans())
    def store_pace(self, held: bool) -> None:
        self.driver.hold_store = held
        while self.driver.effects and not held:
            self.driver.answer_store()

    @precondition(lambda self: self.driver.effects)
    @rule(fails=st.booleans())
    def store_answers(self, fails: bool) -> None:
        self.driver.store_error = "unreachable" if fails else ""
        self.driver.answer_store()
        self.driver.store_error = ""

    # -- judgement -------------------------------------------------------------------------------------------------

    @invariant()
    def texts_are_right(self) -> None:
        if not hasattr(self, "driver"):
            return
        for key, told in self.driver.told.items():
            if told.end is None or key in self.judged:
                continue
            self.judged.add(key)
            if key in self.joined:
                first = self.driver.told[self.joined[key]]
                heard = min(len(told.ids), len(first.ids))
                assert told.ids[:heard] == first.ids[:heard], "T2: who joins hears the same"
            elif key in self.plain:
                assert told.ids == expected(self.plain[key], len(told.ids))
            elif key in self.constrained:
                assert told.ids == expected_under(*self.constrained[key])[: len(told.ids)]
            elif told.end.outcome is not Outcome.ABORT:
                self._judge_turn(key, told)

    @invariant()
    def grammars_are_released(self) -> None:
        """E1: nothing is left of a request that is over."""
        if hasattr(self, "driver"):
            assert self.driver.grammars.open_uids <= {r.uid for r in self.driver.engine.core.requests.all()}

    @invariant()
    def streaming_sessions_are_lines(self) -> None:
        """S3: also after a rollback, and in a fork."""
        if not hasattr(self, "driver"):
            return
        for (_, name), row in self.driver.store.items():
            if row.record.mode is SessionMode.STREAMING:
                rids = [turn.rid for turn in row.turns]
                assert [turn.parent for turn in row.turns] == [None, *rids][: len(rids)], name

    def _judge_turn(self, key: str, told: Told) -> None:
        """The store's record of a committed turn against the text it produced, whatever happened on the way."""
        name = self.turns[key][0]
        row = self.driver.store.get(("t", name))
        if row is None or key not in {turn.rid for turn in row.turns}:
            return  # closed, or replaced, in the meantime
        turns = {turn.rid: turn for turn in row.turns}
        prompt = self._context(turns, key)[: -len(told.ids) or None]
        assert told.ids == expected(prompt, len(told.ids))
        assert told.end.prompt_tokens == len(prompt)
        assert told.end.cached_tokens <= max(0, len(prompt) - 1)
        given = self.turns[key][1]["prompt"]
        assert given == prompt[len(prompt) - len(given) :]

    def _context(self, turns: dict, rid: str | None) -> list[int]:
        if rid is None:
            return []
        turn = turns[rid]
        kept = self._context(turns, turn.parent)[: turn.keep]
        return kept + list(turn.input_ids) + list(turn.output_ids)

    def teardown(self) -> None:
        """Draining always ends empty: no lease, page, table entry or queue is left."""
        if not hasattr(self, "driver"):
            return
        driver = self.driver
        driver.hold_store = driver.hold_grammars = driver.hold_kv = False
        self._answer_all()
        driver.handle(Resume())
        driver.run(5000)
        self.texts_are_right()
        assert all(told.end is not None for told in driver.told.values())
        for name in NAMES:
            info = driver.info(name)
            row = driver.store.get(("t", name))
            if info is not None and row is not None and info.generation == row.record.generation:
                assert (info.turns, info.head) == (len(row.turns), row.record.head)
            driver.close(name)
        driver.ask_flush()
        stats = driver.engine.snapshot()
        assert (stats.live, stats.waiting, stats.running, stats.sessions) == (0, 0, 0, 0)
        assert stats.pages.free == stats.pages.total
        assert len(driver.engine.core.requests) == 0
        assert (stats.images, len(driver.engine.core.kv.transfers), driver.kv.images) == (0, 0, {})

    def _answer_all(self) -> None:
        while self.driver.effects:
            self.driver.answer_store()
        while self.driver.grammars.held:
            self.driver.answer_grammar()
        while self.driver.kv.held:
            self.driver.answer_kv()

    def _key(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"


def _ancestors(parents: dict[str, str | None], rid: str) -> set[str]:
    found: set[str] = set()
    above = parents[rid]
    while above is not None:
        found.add(above)
        above = parents[above]
    return found


EngineMachine.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestEngineMachine = EngineMachine.TestCase
