"""Does this token end the request? Pure, in the order of rule E7."""

from __future__ import annotations

from actors.engine.request import Request, Verdict
from actors.engine.settings import EngineSettings
from actors.messages import Outcome, SamplingParams


def judge(request: Request, token: int, settings: EngineSettings) -> Verdict | None:
    """Judge the token just appended to `request`: stop string, then stop token or EOS, then length."""
    sampling, num_output = request.sampling, len(request.tokens) - request.prompt_len
    if request.stops is not None:
        matched = request.stops.push(settings.vocab_bytes[token])
        if matched is not None and num_output >= sampling.min_tokens:
            return Verdict(Outcome.STOP, matched=matched)
    if num_output >= sampling.min_tokens and token in request.ends:
        return Verdict(Outcome.STOP)
    if num_output >= request.max_tokens:
        return Verdict(Outcome.LENGTH)
    return None


def end_tokens(sampling: SamplingParams, eos_ids: frozenset[int]) -> frozenset[int]:
    """What `Request.ends` is for a request."""
    mine = frozenset() if sampling.ignore_eos else eos_ids
    return mine.union(sampling.stop_token_ids) if sampling.stop_token_ids else mine
