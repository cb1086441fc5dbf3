"""What leaves a worker for an ingress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from actors.messages.words import Outcome, PromptScore, Reason, Stage, TokenIds, TokenLogprobs


@dataclass(slots=True, unsafe_hash=True)
class Tokens:
    """New output tokens of a request. `index` is the output position of `ids[0]`: a gap means a lost event.

    Nobody changes one. It is not frozen since there is one per token, and a frozen one takes three times as long to
    make.

    `prompt`: with the first tokens of a turn, a digest of the whole prompt that they were made from: who wants to go on
    with them elsewhere has to go on from the same.
    `logprobs`: of the last of `ids`, as many as there are, where they were asked for. Output that was made elsewhere,
    or stored, has none.
    `prompt_scores`: of the next tokens of the prompt, where they were asked for: all of them come before, or with, the
    first of `ids`, which may be empty."""

    ingress: str
    key: str
    index: int
    ids: TokenIds
    prompt: bytes = b""
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_scores: tuple[PromptScore, ...] = ()


@dataclass(slots=True)
class StepTokens:
    """One more token of each of many requests of an ingress, as columns: what a step's decodes have chosen. Within a
    worker only: what leaves it are `Tokens`."""

    ingress: str
    keys: list[str] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def each(self) -> Iterator[Tokens]:
        """The same as an event per request."""
        for key, index, token in zip(self.keys, self.indexes, self.ids, strict=True):
            yield Tokens(self.ingress, key, index, (token,))


CANNOT_RESUME = "on_worker_lost"
"""`Finished.param` of an attempt whose beginning, made elsewhere, cannot be gone on with; nor by another attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The one terminal event of a request (rule E1). No `Tokens` of this key follow it.

    `matched`: the stop string that ended it, if one did (the text is cut before it). `message` is for people.
    `cached_tokens`: prompt tokens whose KV was there already. `turn`: number of the committed turn, 0 if none.
    `replayed`: the answer is a stored one (rule T2). `redirect`: this worker does not own the session; place it anew.
    """

    ingress: str
    key: str
    outcome: Outcome
    reason: Reason | None = None
    stage: Stage | None = None
    message: str = ""
    matched: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    turn: int = 0
    replayed: bool = False
    redirect: bool = False
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer to a control message that carried `ask`."""

    ask: int
    value: object = field(default=None)


Event = Tokens | StepTokens | Finished | Reply


def singly(outputs: Iterable[object]) -> Iterator[object]:
    """What an engine has put out, each token told by itself."""
    for output in outputs:
        if type(output) is StepTokens:
            yield from output.each()
        else:
            yield output
