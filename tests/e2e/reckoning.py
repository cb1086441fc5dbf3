"""Two censuses compared: what did not come back, and whether the counters and the clients tell the same story."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.e2e.answers import REASONS
from tests.e2e.census import Census

MIB = 2**20
SLACK: dict[str, int] = {
    "resident bytes": 96 * MIB,
    "file bytes": 16 * MIB,
    "journal bytes": 8 * MIB,
    "open files": 8,
    "threads": 8,
    "tasks": 2,
    "cached placements": 0,
}
"""How much more there may be than before: of memory, what allocators keep; of the store, what SQLite uses again; of
files and threads, pools that fill when they are first used; of tasks, the question itself. Of all else nothing."""
WORKER_MEMORY = 640 * MIB
"""Of a worker: what torch's oneDNN compiles and keeps for each number of rows that a step has for the first time, some
2 MiB for the default model, and at most `engine.max_step_tokens` (256) different ones. Measured alone in one process:
944 MiB before, 1,496 after all of them, 1,514 after meeting 50 of them again."""
CHECKER_PROCESSES = ("actors.runner.grammar.check", "processes")
CHECKERS = 4
"""Children that check grammars are started when they are needed and kept: two for each worker at most."""
ANSWERED_ABORT = ("client_abort", "superseded", "session_closed")
"""Reasons that a client hears as finish_reason "abort"."""
UNHEARD = ("left", "cut short")


@dataclass(frozen=True)
class Line:
    owner: str
    what: str
    before: int
    after: int

    @property
    def slack(self) -> int:
        if (self.owner, self.what) == CHECKER_PROCESSES:
            return CHECKERS
        if self.what == "resident bytes" and self.owner.startswith("worker-"):
            return WORKER_MEMORY
        return SLACK.get(self.what, 0)

    @property
    def is_back(self) -> bool:
        """More than before, or, of what no allowance is made for, less."""
        more = self.after - self.before
        return more <= self.slack and (bool(self.slack) or more == 0)


def held_lines(before: Census, after: Census) -> Iterator[Line]:
    for owner in before.held | after.held:
        then, now = before.held.get(owner, {}), after.held.get(owner, {})
        for what in then | now:
            yield Line(owner, what, then.get(what, 0), now.get(what, 0))


def ends_between(before: Census, after: Census, owner: str) -> Counter[tuple[str, str, str]]:
    return after.ends[owner] - before.ends.get(owner, Counter())


def received_between(before: Census, after: Census, owner: str) -> int:
    return after.received[owner] - before.received.get(owner, 0)


def heard_as(outcome: str, reason: str) -> str:
    """What a client that stays hears of an end."""
    if outcome != "abort":
        return outcome
    return "abort" if reason in ANSWERED_ABORT else reason


@dataclass(frozen=True)
class Story:
    """Chat requests between two censuses (rule E6). `surplus`: ends of which no client heard, by how it would have."""

    sent: int
    answered: int
    received: int
    ended: int
    surplus: Counter[str]

    @property
    def unheard(self) -> int:
        return self.sent - self.answered

    @property
    def never_arrived(self) -> int:
        """Sent by clients that left before their request was read."""
        return self.sent - self.received

    def contradictions(self) -> list[str]:
        wrong = []
        if self.received != self.ended:
            wrong.append(f"{self.received} requests received, {self.ended} ended")
        wrong += [f"clients heard {-n} more ends {kind!r} than there were" for kind, n in self.surplus.items() if n < 0]
        if not 0 <= self.never_arrived <= self.unheard:
            wrong.append(f"{self.sent} requests sent, {self.received} received, {self.unheard} left unanswered")
        if self.answered + self.surplus.total() != self.received:
            wrong.append(
                f"{self.answered} answered and {self.surplus.total()} unheard ends of {self.received} received"
            )
        return wrong


def story(before: Census, after: Census, answers: Counter[str]) -> Story:
    """`answers`: what clients heard meanwhile."""
    ends: Counter[str] = Counter()
    for (outcome, reason, _), count in ends_between(before, after, "ingress").items():
        ends[heard_as(outcome, reason)] += count
    heard = Counter({kind: count for kind, count in answers.items() if kind not in UNHEARD})
    surplus = Counter(ends)
    surplus.subtract(heard)
    return Story(
        sent=answers.total(),
        answered=heard.total(),
        received=received_between(before, after, "ingress"),
        ended=sum(ends.values()),
        surplus=surplus,
    )


def differences(before: Census, after: Census, answers: Counter[str]) -> list[str]:
    """Everything that is not as it was, or does not add up."""
    wrong = [
        f"{line.owner}: {line.what} {line.before:,} before, {line.after:,} after"
        for line in held_lines(before, after)
        if not line.is_back
    ]
    wrong += after.unrest() + after.closed() + story(before, after, answers).contradictions()
    for owner in after.received:
        unknown = {reason for _, reason, _ in after.ends[owner]} - REASONS - {""}
        wrong += [f"{owner}: the reason {reason!r} is none of the closed set" for reason in sorted(unknown)]
    return wrong
