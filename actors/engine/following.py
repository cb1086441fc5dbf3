"""One request, several listeners (rule T2): who sends a running request again may join it.

A follower is told the whole stream, from the first token, and its own end. It can leave, and so can whoever asked
first: then a follower takes that place, and the request goes on as long as anybody listens. What ends the request ends
it for all.
"""

from __future__ import annotations

from dataclasses import replace

from actors.engine.context import digest_of
from actors.engine.core import Core
from actors.engine.endings import tell_end, terminal
from actors.engine.request import Follower, Request, Verdict
from actors.messages import AbortHit, Submit, Tokens

MAX_FOLLOWERS = 64
"""Of one request: more are refused as any other repetition."""


class Following:
    def __init__(self, core: Core) -> None:
        self._core = core

    def leader(self, submit: Submit, now: float) -> Request | None:
        """The live request that `submit` asks to join, if there is one and the body is the same."""
        if not submit.join or self._core.tombstones.has(submit.key, now):
            return None
        found = self._core.requests.named(submit)
        if not found or found[0].submit.digest != submit.digest:
            return None
        first = found[0]
        if len(first.followers) >= MAX_FOLLOWERS:
            return None
        return first if goes_on(submit, first.tokens, first.prompt_len) else None

    def join(self, leader: Request, submit: Submit, now: float) -> None:
        """Tell what the leader's listeners have heard, and all that is to come."""
        self._core.totals.received += 1
        leader.followers.append(Follower(submit.ingress, submit.key, len(submit.resumed_ids)))
        leader.ask_again()
        self._core.requests.follow(submit.key, submit.ingress, leader)
        leader.story.append(f"{now:.3f} joined by {submit.key}")
        told = len(submit.resumed_ids)
        if leader.num_output > told or (leader.scores and not told):
            self._core.out.append(heard(leader, submit.ingress, submit.key, told))

    def leave(self, key: str, verdict: Verdict, now: float) -> AbortHit | None:
        """One of several listeners goes, and the request goes on. None: nobody else listens, or it is ending."""
        request = self._core.requests.by_key(key)
        if request is None or not request.followers or not request.can_be_aborted:
            return None
        end = replace(terminal(request, verdict, request.stage), key=key)
        if key == request.submit.key:
            ingress, heir = request.submit.ingress, request.followers.pop(0)
            # What the former caller had of another attempt, the heir has not heard, unless it is output by now.
            resumed = request.submit.resumed_ids if request.num_output else ()
            request.submit = replace(request.submit, key=heir.key, ingress=heir.ingress, resumed_ids=resumed)
        else:
            (gone,) = (follower for follower in request.followers if follower.key == key)
            request.followers.remove(gone)
            ingress = gone.ingress
            end = replace(end, ingress=ingress, completion_tokens=max(request.num_output, gone.told))
        self._core.requests.unfollow(key, ingress)
        tell_end(self._core, end, request.stage, now)
        request.story.append(f"{now:.3f} left by {key}")
        return AbortHit(rid=request.submit.rid, key=key, stage=request.stage)


def heard(request: Request, ingress: str, key: str, index: int) -> Tokens:
    """The output of a request from position `index` on, for somebody who has heard what is before."""
    ids = tuple(request.output[index:])
    logprobs = tuple(request.logprobs[-len(ids) :]) if ids else ()
    scores = () if index else tuple(request.scores)  # They came before the first token, or with it.
    return Tokens(
        ingress=ingress,
        key=key,
        index=index,
        ids=ids,
        prompt=prompt_digest(request),
        logprobs=logprobs,
        prompt_scores=scores,
    )


def goes_on(submit: Submit, tokens: list[int], prompt_len: int) -> bool:
    """Whether `tokens`, a prompt and its output, are what a client has the beginning of already."""
    told = list(submit.resumed_ids)
    if tokens[prompt_len : prompt_len + len(told)] != told:
        return False
    return not submit.resumed_prompt or submit.resumed_prompt == digest_of(tokens[:prompt_len])


def prompt_digest(request: Request) -> bytes:
    """Says from which tokens a turn's output is made. Empty for requests without a session: theirs cannot change."""
    return request.context.digest(request.prompt_len) if request.turn else b""
