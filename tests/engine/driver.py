"""Drives an engine by hand: the toy runner, a store that answers when told to, and the law checked after every verb."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from actors.engine.core import Output
from actors.engine.effects import (
    CompileGrammar,
    DropKV,
    Effect,
    ForgetSession,
    LoadKV,
    LoadSession,
    PackKV,
    ReleaseGrammar,
    RollBackTurns,
    SaveKV,
    SessionForgotten,
    SessionLoaded,
    StoreTurn,
    TurnsRolledBack,
    TurnStored,
    UnpackKV,
)
from actors.engine.engine import Engine
from actors.engine.history import History
from actors.engine.invariants import check
from actors.engine.plan import StepPlan
from actors.engine.settings import EngineSettings
from actors.messages import (
    Abort,
    AbortReport,
    CloseSession,
    Finished,
    FlushCache,
    ForkSession,
    GetSession,
    Grammar,
    OpenSession,
    Outcome,
    PromptScore,
    Reply,
    RollbackSession,
    SamplingParams,
    SessionInfo,
    SessionMode,
    SessionRolledBack,
    Submit,
    TokenLogprobs,
    Tokens,
    TurnOf,
    singly,
)
from actors.records import SessionRecord, TurnRecord
from actors.runner.base import ModelRunner, StepHandle
from actors.runner.toy import ToyRunner, toy_continuation
from tests.engine.grammar_desk import GrammarDesk
from tests.engine.kv_desk import KVDesk


@dataclass
class Told:
    """What an ingress has heard of one attempt."""

    ids: list[int] = field(default_factory=list)
    end: Finished | None = None
    prompt: bytes = b""
    """Digest of the prompt that the tokens were made from."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    scores: list[PromptScore] = field(default_factory=list)


@dataclass
class Row:
    """A session as the driver's store knows it."""

    record: SessionRecord
    turns: list[TurnRecord] = field(default_factory=list)


class Driver:
    """`engine` and `runner` with settings of your choice. Effects pile up in `effects` while `hold_store` is set."""

    def __init__(self, runner: ModelRunner | None = None, **settings: Any) -> None:
        page_size = settings.pop("page_size", 4)
        kv_tokens = settings.pop("kv_tokens", 1024)
        max_context = settings.pop("max_context", 512)
        self.runner = runner or ToyRunner(page_size=page_size, kv_tokens=kv_tokens, max_context=max_context)
        info = self.runner.info
        defaults: dict[str, Any] = {"max_step_tokens": 16, "depth": 0, "forecast": False}
        self.engine = Engine(
            EngineSettings(
                page_size=info.page_size,
                num_pages=info.num_pages,
                max_context=info.max_context,
                vocab_size=info.vocab_size,
                vocab_bytes=info.vocab_bytes,
                no_grammars=info.no_grammars,
                eos_ids=info.eos_ids,
                **{**defaults, **settings},
            )
        )
        self.now = 0.0
        self.told: dict[str, Told] = {}
        self.sent: dict[str, Submit] = {}
        self.replies: dict[int, object] = {}
        self.effects: deque[Effect] = deque()
        self.hold_store = False
        self.hold_grammars = False
        self.hold_kv = False
        self.answered_kv = 0
        self.kv = KVDesk(self.runner)
        self.grammars = GrammarDesk(self.runner.matchers)
        self.store_error = ""
        self.stale = False
        self.store: dict[tuple[str, str], Row] = {}
        self.launched: deque[tuple[StepPlan, StepHandle]] = deque()
        self._generation = 0
        self._ask = 0

    # -- verbs, each followed by the law ---------------------------------------------------------------------------

    def handle(self, message: Any) -> None:
        self._hear(self.engine.handle(message, self.now))

    def tick(self, dt: float = 0.0) -> None:
        """Move the clock and let it ring."""
        self.now += dt
        self._hear(self.engine.expire(self.now))

    def launch(self) -> StepPlan | None:
        """Plan a step and launch it."""
        plan = self.engine.plan(self.now)
        check(self.engine)
        if plan is not None:
            self.launched.append((plan, self.runner.launch(plan)))
        self._hear(self.engine.take_output())
        return plan

    def commit(self) -> None:
        """Commit the oldest launched step."""
        plan, handle = self.launched.popleft()
        self._hear(self.engine.commit(plan, handle.wait(), self.now))

    def step(self, dt: float = 0.01) -> bool:
        """Once around the loop, as the worker does it. False when there was nothing to do."""
        answered = self.answered_kv
        self.tick(dt)
        plan = self.launch()
        if self.launched and (plan is None or len(self.launched) > self.engine.settings.depth):
            self.commit()
            return True
        return plan is not None or self.answered_kv > answered

    def run(self, steps: int = 2000) -> None:
        """Step until nothing is left to do."""
        for _ in range(steps):
            if not self.step():
                return
        raise AssertionError(f"still busy after {steps} steps")

    # -- requests --------------------------------------------------------------------------------------------------

    def submit(self, key: str, prompt: list[int] | range, max_tokens: int | None = 8, **fields: Any) -> Told:
        sampling = fields.pop("sampling", None) or SamplingParams(max_tokens=max_tokens)
        fields.setdefault("rid", key)
        fields.setdefault("tenant", "t")
        fields.setdefault("ingress", "i")
        self.told[key] = Told(ids=list(fields.get("resumed_ids", ())))
        self.sent[key] = Submit(key=key, input_ids=tuple(prompt), sampling=sampling, **fields)
        self.handle(self.sent[key])
        return self.told[key]

    def open(self, session_id: str = "s", mode: SessionMode = SessionMode.STREAMING, **fields: Any) -> SessionRecord:
        """Create a session in the store and tell the engine, as the pool does."""
        self._generation += 1
        record = SessionRecord(
            tenant="t",
            session_id=session_id,
            generation=self._generation,
            epoch=1,
            owner="w",
            mode=mode,
            idle_timeout_s=fields.pop("idle_timeout_s", None),
            capacity_tokens=fields.pop("capacity_tokens", None),
            turns=0,
            tokens=0,
            last_active_at=0.0,
        )
        self.store[("t", session_id)] = Row(record)
        self.ask(
            OpenSession,
            session_id=session_id,
            generation=record.generation,
            epoch=1,
            mode=mode,
            idle_timeout_s=record.idle_timeout_s,
            capacity_tokens=record.capacity_tokens,
        )
        return record

    def fork(self, session_id: str, turn: str | None = None, source: str = "s") -> SessionInfo:
        """Fork a session in the store and tell the engine, as pool and ingress do."""
        self._generation += 1
        row = self.store[("t", source)]
        history = History(row.turns, row.record.head)
        head = turn or history.head
        chain: list[TurnRecord] = []
        rid = head
        while rid is not None:
            chain.insert(0, history.turn(rid))
            rid = chain[0].parent
        record = replace(row.record, session_id=session_id, generation=self._generation, epoch=1, head=head)
        self.store[("t", session_id)] = Row(record, chain)
        info = self.ask(
            ForkSession,
            session_id=session_id,
            generation=record.generation,
            epoch=1,
            source_id=source,
        )
        assert isinstance(info, SessionInfo)
        return info

    def rollback(self, turn: str, session_id: str = "s", **numbers: int) -> SessionRolledBack | None:
        """None: the store has been asked and has not answered."""
        record = self.store[("t", session_id)].record
        numbers = {"generation": record.generation, "epoch": record.epoch, **numbers}
        answer = self.ask(RollbackSession, session_id=session_id, turn=turn, **numbers)
        assert answer is None or isinstance(answer, SessionRolledBack)
        return answer

    def turn(self, key: str, prompt: list[int] | range, max_tokens: int | None = 8, **fields: Any) -> Told:
        """Submit a turn of session `s` (or `session_id`)."""
        session_id = fields.pop("session_id", "s")
        record = self.store[("t", session_id)].record
        names = (
            "from_head",
            "parent",
            "replace",
            "drop_previous_output",
            "offset",
            "on_busy",
            "create",
            "whole",
            "stem",
            "reply",
            "reasoning",
            "calls",
            "notation",
        )
        turn = {name: fields.pop(name) for name in names if name in fields}
        if "parent" in turn:
            turn.setdefault("from_head", False)
        of = TurnOf(
            session_id=session_id,
            generation=fields.pop("generation", record.generation),
            epoch=fields.pop("epoch", record.epoch),
            **turn,
        )
        return self.submit(key, prompt, max_tokens, turn=of, **fields)

    def ask(self, kind: Any, **fields: Any) -> Any:
        """Send a control message; its answer, or None while there is none."""
        self._ask += 1
        self.handle(kind(tenant="t", ask=self._ask, **fields))
        return self.replies.get(self._ask)

    @property
    def last_ask(self) -> int:
        """Number of the last control message; its answer, once there is one, is in `replies`."""
        return self._ask

    def abort(self, **fields: Any) -> AbortReport:
        report = self.ask(Abort, **fields)
        assert isinstance(report, AbortReport)
        return report

    def close(self, session_id: str = "s", **fields: Any) -> Any:
        row = self.store.get(("t", session_id))
        generation = row.record.generation if row else 0
        return self.ask(CloseSession, session_id=session_id, generation=generation, **fields)

    def ask_flush(self) -> int:
        self._ask += 1
        self.handle(FlushCache(ask=self._ask))
        freed = self.replies[self._ask]
        assert isinstance(freed, int)
        return freed

    def info(self, session_id: str = "s") -> SessionInfo | None:
        info = self.ask(GetSession, session_id=session_id)
        assert info is None or isinstance(info, SessionInfo)
        return info

    # -- the store -------------------------------------------------------------------------------------------------

    def answer_store(self) -> None:
        """Perform the oldest held effect."""
        effect = self.effects.popleft()
        match effect:
            case StoreTurn():
                self.handle(self._store_turn(effect))
            case LoadSession():
                self.handle(self._load(effect))
            case ForgetSession():
                row = self.store.get((effect.tenant, effect.session_id))
                if row is not None and row.record.generation == effect.generation:
                    del self.store[(effect.tenant, effect.session_id)]
                self.handle(SessionForgotten(session=effect.session, error=self.store_error))
            case RollBackTurns():
                self.handle(self._roll_back(effect))

    def answer_grammar(self, *, timed_out: bool = False) -> None:
        """Compile the oldest held grammar, or let that time out."""
        self.handle(self.grammars.answer(timed_out=timed_out))

    def answer_kv(self) -> None:
        """Make the oldest held copy of KV."""
        self.answered_kv += 1
        self.handle(self.kv.answer())

    def _store_turn(self, effect: StoreTurn) -> TurnStored:
        if self.store_error or self.stale:
            return TurnStored(session=effect.session, uid=effect.uid, stale=self.stale, error=self.store_error)
        row = self.store[(effect.commit.tenant, effect.commit.session_id)]
        row.turns = [turn for turn in row.turns if turn.rid not in effect.commit.turn.dropped]
        row.turns.append(effect.commit.turn)
        row.record = replace(row.record, head=effect.commit.turn.rid)
        return TurnStored(session=effect.session, uid=effect.uid)

    def _roll_back(self, effect: RollBackTurns) -> TurnsRolledBack:
        answer = TurnsRolledBack(
            session=effect.session, ask=effect.ask, turn=effect.turn, stale=self.stale, error=self.store_error
        )
        row = self.store.get((effect.tenant, effect.session_id))
        if row is None or row.record.generation != effect.generation:
            return replace(answer, stale=True)
        if not self.stale and not self.store_error:
            dropped = History(row.turns).descendants(effect.turn)
            row.turns = [turn for turn in row.turns if turn.rid not in dropped]
            row.record = replace(row.record, head=effect.turn)
        return answer

    def _load(self, effect: LoadSession) -> SessionLoaded:
        row = self.store.get((effect.tenant, effect.session_id))
        if self.store_error:
            return SessionLoaded(session=effect.session, record=None, error=self.store_error)
        if row is None or row.record.generation != effect.generation:
            return SessionLoaded(session=effect.session, record=None)
        return SessionLoaded(session=effect.session, record=row.record, turns=tuple(row.turns))

    def _hear(self, outputs: list[Output]) -> None:
        check(self.engine)
        for output in singly(outputs):
            match output:
                case Tokens():
                    told = self.told[output.key]
                    assert told.end is None, "E1: a token after the end"
                    assert output.index == len(told.ids), "events carry an index without gaps"
                    told.ids.extend(output.ids)
                    told.logprobs.extend(output.logprobs)
                    assert not output.prompt_scores or not output.index, "the prompt's scores come before its reply"
                    told.scores.extend(output.prompt_scores)
                    told.prompt = told.prompt or output.prompt
                case Finished():
                    told = self.told[output.key]
                    assert told.end is None, "E1: a second end"
                    assert output.completion_tokens == len(told.ids), "E5: usage counts what was delivered"
                    told.end = output
                case CompileGrammar():
                    self.grammars.take(output)
                case SaveKV() | LoadKV() | DropKV() | PackKV() | UnpackKV():
                    self.kv.take(output)
                case ReleaseGrammar():
                    self.grammars.release(output.uid)
                case Reply():
                    self.replies[output.ask] = output.value
                case _:
                    self.effects.append(output)
        while self.effects and not self.hold_store:
            self.answer_store()
        while self.grammars.held and not self.hold_grammars:
            self.answer_grammar()
        while self.kv.held and not self.hold_kv:
            self.answer_kv()


def committed(told: Told) -> bool:
    return told.end is not None and told.end.outcome is not Outcome.ABORT


def expected(prompt: list[int], num_tokens: int) -> list[int]:
    """REF: what a fresh engine would answer."""
    return toy_continuation(list(prompt), num_tokens)


def expected_under(grammar: Grammar, prompt: list[int], max_tokens: int = 12) -> list[int]:
    """REF of a constrained request: what a fresh, idle engine answers."""
    driver = Driver()
    told = driver.submit("ref", prompt, max_tokens, grammar=grammar)
    driver.run()
    return told.ids
