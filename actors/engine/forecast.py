"""How much a request will probably generate: what admission counts on, instead of the worst case (design rule 5).

`max_tokens` says what a request may generate, and mostly far more than it does. Admitting by it leaves the cache half
empty; admitting by the prompt alone fills it with requests that then have to be preempted. So it is measured: the
share of `max_tokens` that requests use, and, for those that set no limit, how many tokens they take. A preemption says
that this was too little, and raises the estimate for a while.
"""

from __future__ import annotations

from actors.engine.request import Request
from actors.messages import Outcome

LEAST_WEIGHT = 0.02
"""Of one request in the averages: they follow the last hundred or so, and the first few quickly."""
AT_FIRST_TOKENS = 256
"""What a request without a limit is taken to generate before any has ended."""
MAX_CARE = 4.0
RAISE, RELAX = 1.5, 0.98
"""What one preemption, and one request that ends by itself, do to the care."""


class Forecast:
    """Moving averages over requests that ended by themselves; those that were aborted say nothing.

    With `measured` False it expects one token more, always: as many as possible are admitted, and preempted later."""

    def __init__(self, *, measured: bool = True) -> None:
        self._measured = measured
        self._seen = 1
        self.share = 1.0
        """Of `max_tokens`, where it was asked for. Careful at first: the whole."""
        self.open_tokens = float(AT_FIRST_TOKENS)
        """Tokens of a request that set no limit."""
        self.care = 1.0
        """Factor on both: above 1 after preemptions."""

    def total_tokens(self, request: Request) -> int:
        """Prompt and output that a request is expected to have in the end, at least one token more than now."""
        known = len(request.tokens)
        if not self._measured:
            return known + 1
        asked = request.sampling.max_tokens
        expected = self.open_tokens if asked is None else self.share * asked
        wanted = request.prompt_len + int(self.care * expected)
        return max(known + 1, min(wanted, request.prompt_len + request.max_tokens))

    def learn(self, request: Request, outcome: Outcome) -> None:
        """A request has ended."""
        if outcome is Outcome.ABORT or not request.max_tokens:
            return
        self.care = max(1.0, self.care * RELAX)
        self._seen += 1
        weight = max(LEAST_WEIGHT, 1 / self._seen)
        asked = request.sampling.max_tokens
        if asked is None:
            self.open_tokens += weight * (request.num_output - self.open_tokens)
        else:
            self.share += weight * (request.num_output / asked - self.share)

    def preempted(self) -> None:
        """There was less room than had been counted on."""
        self.care = min(MAX_CARE, self.care * RAISE)
