"""Can this request ever fit? Decided on arrival, with the numbers (rules K5, S10)."""

from __future__ import annotations

from actors.engine.plan import NUM_RESERVED_PAGES
from actors.engine.request import Verdict
from actors.engine.settings import EngineSettings
from actors.messages import Reason


def fit(prompt_len: int, asked: int | None, capacity: int | None, settings: EngineSettings) -> int | Verdict:
    """How many tokens the request may generate, or why it cannot run.

    `asked`: its max_tokens; None means as many as fit. `capacity`: the session's limit on its context, if any.
    """
    context, pool = settings.max_context, (settings.num_pages - NUM_RESERVED_PAGES) * settings.page_size
    if prompt_len == 0:
        return Verdict.abort(Reason.INVALID, "the prompt is empty", param="messages")
    if prompt_len >= context:
        text = f"the prompt has {prompt_len} tokens; this model's context is {context}, reply included"
        return Verdict.abort(Reason.TOO_LARGE, text, param="messages")
    room = min(context, pool) - prompt_len
    if room <= 0:
        text = f"the prompt has {prompt_len} tokens; the KV cache holds {pool}"
        return Verdict.abort(Reason.TOO_LARGE, text, param="messages")
    if asked is not None and asked > room:
        text = f"{prompt_len} prompt tokens and max_tokens {asked} exceed the limit of {min(context, pool)} tokens"
        return Verdict.abort(Reason.TOO_LARGE, text, param="max_tokens")
    wanted = room if asked is None else asked
    if capacity:
        left = capacity - prompt_len
        if left <= 0 or (asked is not None and asked > left):
            text = f"{prompt_len} prompt tokens and max_tokens {asked} exceed this session's {capacity} tokens"
            return Verdict.abort(Reason.SESSION_CAPACITY, text, param="session")
        wanted = min(wanted, left)
    return wanted
