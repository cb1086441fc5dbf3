"""Does this token end the request? Pure, in the order of rule E7."""

from __future__ import annotations

from actors.engine.request import Request, Verdict
from actors.engine.settings import EngineSettings
from actors.messages import Outcome


def judge(request: Request, token: int, settings: EngineSettings) -> Verdict | None:
    """Judge the token just appended to `request`: stop string, then stop token or EOS, then length."""
    sampling, num_output = request.sampling, len(request.tokens) - request.prompt_len
    if request.stops is not None:
        matched = request.stops.push(settings.vocab_bytes[token])
        if matched is not None and num_output >= sampling.min_tokens:
            return Verdict(Outcome.STOP, matched=matched)
    if num_output >= sampling.min_tokens:
        if token in sampling.stop_token_ids:
            return Verdict(Outcome.STOP)
        if not sampling.ignore_eos and token in settings.eos_ids:
            return Verdict(Outcome.STOP)
    if num_output >= request.max_tokens:
        return Verdict(Outcome.LENGTH)
    return None
