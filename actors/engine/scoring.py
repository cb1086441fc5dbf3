"""Log probabilities of a prompt's own tokens: which positions have to be computed for them, and what is told of them.

The logits of position p say how likely the token at p + 1 was. So a prompt that is scored from position f on is
computed from f - 1 on, whatever of it is in the cache, and is told piece by piece as its chunks commit; what was
told stays told through a preemption. Nothing came before the first token of all: it has no probability.
"""

from __future__ import annotations

from dataclasses import replace

from actors.engine.core import Core
from actors.engine.plan import PlanItem
from actors.engine.request import Request, Verdict
from actors.messages import PromptScore, Reason, SamplingParams, TokenLogprobs, Tokens

MAX_NUMBERS = 2**17
"""Log probabilities that are told of one prompt: its tokens times those beside each."""
FIELD = "logprob_start_len"


def unscorable(prompt_len: int, sampling: SamplingParams) -> Verdict | None:
    """Why the log probabilities that are asked for of this prompt, the restored one, cannot be told."""
    begin = sampling.prompt_logprobs_from
    if begin is None:
        return None
    if begin > prompt_len:
        text = f"log probabilities are asked for from position {begin} on, and the prompt has {prompt_len} tokens"
        return Verdict.abort(Reason.INVALID, text, param=FIELD)
    numbers = numbers_told(prompt_len, sampling)
    if numbers > MAX_NUMBERS:
        text = f"{numbers} log probabilities are asked for of this prompt; at most {MAX_NUMBERS} are told"
        return Verdict.abort(Reason.INVALID, text, param=FIELD)
    return None


def numbers_told(prompt_len: int, sampling: SamplingParams) -> int:
    """How many log probabilities of a prompt of so many tokens are asked for."""
    if sampling.prompt_logprobs_from is None:
        return 0
    return (prompt_len - sampling.prompt_logprobs_from) * (1 + (sampling.logprobs or 0) + len(sampling.logprob_ids))


def begin(core: Core, request: Request) -> None:
    """The request's prompt is known. Who goes on behind what a client has was told of the prompt before that."""
    first = request.sampling.prompt_logprobs_from
    request.scored = request.prompt_len
    if first is None or request.submit.resumed_ids:
        return
    request.scored = first
    if first == 0:
        _tell(core, request, ((request.tokens[0], None),))


def positions(request: Request, start: int, count: int) -> range:
    """Those of [start, start + count) whose logits score a token that has not been told."""
    return range(max(start, request.scored - 1), min(start + count, request.prompt_len - 1))


def wanted(request: Request, start: int, count: int) -> tuple[list[int], int]:
    """(tokens to be scored by the positions [start, start + count), the position whose logits score the first)."""
    rows = positions(request, start, count)
    return request.tokens[rows.start + 1 : rows.stop + 1] if rows else [], rows.start


def most_positions(request: Request, start: int, count: int, most: int) -> int:
    """As much of `count` positions from `start` on as has no more than `most` to score."""
    wanted = positions(request, start, count)
    return count if len(wanted) <= most else wanted.start + most - start


def committed(core: Core, request: Request, item: PlanItem, scores: tuple[TokenLogprobs, ...]) -> None:
    """A chunk has been computed: tell what it says of the prompt."""
    _tell(core, request, tuple(zip(item.scored, scores, strict=True)))


def _tell(core: Core, request: Request, scores: tuple[PromptScore, ...]) -> None:
    submit = request.submit
    request.scored += len(scores)
    request.scores.extend(scores)
    event = Tokens(ingress=submit.ingress, key=submit.key, index=request.num_output, ids=(), prompt_scores=scores)
    core.out.append(event)
    for follower in request.followers:
        core.out.append(replace(event, ingress=follower.ingress, key=follower.key))
