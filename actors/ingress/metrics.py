"""Prometheus metrics of one ingress. Session ids and request ids are never labels: their number has no bound.

Every request received is counted once in `remora_requests_received_total` and once, when it ends, in
`remora_requests_ended_total` by outcome, reason and stage (rule E6); in between it is in `remora_requests_in_flight`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from actors.messages import Finished, Outcome, Reason, Stage

_FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_WHOLE_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

_BEFORE_WORK = frozenset({Stage.INGRESS, Stage.ROUTING, Stage.GRAMMAR, Stage.WAITING})

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters, in a registry of their own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.received = Counter("remora_requests_received", "Requests received.", registry=registry)
        self.in_flight = Gauge("remora_requests_in_flight", "Requests received and not ended yet.", registry=registry)
        self.ended = Counter(
            "remora_requests_ended",
            "Requests ended, by outcome, reason and stage.",
            ["outcome", "reason", "stage"],
            registry=registry,
        )
        self.tokens = Counter("remora_tokens", "Tokens of ended requests, by kind.", ["kind"], registry=registry)
        self.retries = Counter("remora_attempts_repeated", "Attempts made again elsewhere.", registry=registry)
        self.keys_refused = Counter(
            "remora_keys_refused", "Requests without a good API key.", ["why"], registry=registry
        )
        self.keys_file_usable = Gauge(
            "remora_keys_file_usable", "1, or 0 while the keys file is broken and the old keys stay.", registry=registry
        )
        self.limited = Counter(
            "remora_requests_limited", "Requests refused by a tenant's limit.", ["limit"], registry=registry
        )
        self.first_token = _histogram(registry, "remora_time_to_first_token_seconds", _FIRST_TOKEN_S)
        self.between_tokens = _histogram(registry, "remora_inter_token_seconds", _BETWEEN_TOKENS_S)
        self.whole = _histogram(registry, "remora_request_seconds", _WHOLE_S)
        self._open = 0

    def request(self, clock: Callable[[], float] = time.monotonic) -> RequestMeter:
        return RequestMeter(self, clock)

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    @property
    def open_requests(self) -> int:
        return self._open

    def _begin(self) -> None:
        self._open += 1
        self.received.inc()
        self.in_flight.inc()

    def _end(self, outcome: Outcome, reason: Reason | None, stage: Stage | None) -> None:
        self._open -= 1
        self.in_flight.dec()
        self.ended.labels(outcome.value, reason.value if reason else "", stage.value if stage else "").inc()


class RequestMeter:
    """One request's measurements. Ends once; a second end is ignored, because ends may race with disconnects."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self.arrived = clock()
        self.first_token_s: float | None = None
        """When the first output token came, in seconds after the request."""
        self._last_token_s: float | None = None
        self.ended = False
        self.on_end: Callable[[int], None] | None = None
        """Told at the end how many tokens the request cost; and of what is known later only, then."""
        self._cost = 0
        metrics._begin()

    def elapsed_s(self) -> float:
        return self._clock() - self.arrived

    def tokens(self, count: int, last_s: float | None = None) -> None:
        """Output tokens came in. `last_s`: when the same reply's last ones did, in seconds after the request; where
        there is one reply only, it is known here."""
        now = self.elapsed_s()
        last_s = self._last_token_s if last_s is None else last_s
        if self.first_token_s is None:
            self.first_token_s = now
            self._metrics.first_token.observe(now)
        elif last_s is not None:
            self._metrics.between_tokens.observe((now - last_s) / count)
        self._last_token_s = now

    def charge(self, finished: Finished) -> None:
        """What a reply cost the request's tenant, whatever name its end goes by."""
        if self.ended and self.on_end is not None:
            self.on_end(_cost(finished))
        self._cost += _cost(finished)

    def end(self, outcome: Outcome, reason: Reason | None = None, stage: Stage | None = None) -> None:
        if not self.ended:
            self.ended = True
            self._metrics.whole.observe(self.elapsed_s())
            self._metrics._end(outcome, reason, stage)
            if self.on_end is not None:
                self.on_end(self._cost)

    def count(self, finished: Finished) -> None:
        """Tokens of a reply that has ended."""
        counted = self._metrics.tokens
        counted.labels("prompt").inc(finished.prompt_tokens)
        counted.labels("cached").inc(finished.cached_tokens)
        counted.labels("completion").inc(finished.completion_tokens)

    def end_with(self, finished: Finished) -> None:
        """The worker's own account of the end, token counts included."""
        if not self.ended:
            self.count(finished)
            self.charge(finished)
        self.end(finished.outcome, finished.reason, finished.stage)


def _cost(finished: Finished) -> int:
    """Tokens that were worked on: none of a stored answer, nor of a request that ended before its first step."""
    if finished.replayed or finished.stage in _BEFORE_WORK:
        return 0
    return finished.prompt_tokens + finished.completion_tokens


def _histogram(registry: CollectorRegistry, name: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(name, name.removeprefix("remora_").replace("_", " "), buckets=buckets, registry=registry)
