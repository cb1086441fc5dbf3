"""The closed sets of words that messages are made of."""

from __future__ import annotations

from enum import Enum

TokenLogprobs = tuple[float, tuple[tuple[int, float], ...]]
"""Of one token: its natural log probability under the model itself, before penalties, bias and temperature; and (id,
log probability) of the likeliest tokens, likeliest first, then of those that were asked for by id, as they were."""

TokenIds = tuple[int, ...]

PromptScore = tuple[int, TokenLogprobs | None]
"""A token of a prompt by its id. None: the first of all, which nothing came before."""


class Outcome(str, Enum):
    """How a request ended. Exactly one per request (rule E1)."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Reason(str, Enum):
    """Why a request ended in `Outcome.ABORT`. A closed set (rule E2)."""

    CLIENT_ABORT = "client_abort"
    CLIENT_DISCONNECT = "client_disconnect"
    SUPERSEDED = "superseded"
    SESSION_CLOSED = "session_closed"
    WAITING_TIMEOUT = "waiting_timeout"
    RUNNING_TIMEOUT = "running_timeout"
    DEADLINE = "deadline"
    QUEUE_FULL = "queue_full"
    TOO_LARGE = "too_large"
    SESSION_BUSY = "session_busy"
    SESSION_UNKNOWN = "session_unknown"
    SESSION_EXISTS = "session_exists"
    SESSION_CLOSING = "session_closing"
    SESSION_CAPACITY = "session_capacity"
    PARENT_UNKNOWN = "parent_unknown"
    PARENT_UNFINISHED = "parent_unfinished"
    INVALID = "invalid"
    GRAMMAR_INVALID = "grammar_invalid"
    GRAMMAR_TIMEOUT = "grammar_timeout"
    WORKER_LOST = "worker_lost"
    WORKER_DRAINING = "worker_draining"
    SHUTDOWN = "shutdown"
    INTERNAL = "internal"


class Stage(str, Enum):
    """Where in its life a request was when it ended (rule E2)."""

    INGRESS = "ingress"
    ROUTING = "routing"
    GRAMMAR = "grammar"
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"


class SessionMode(str, Enum):
    """`TREE`: turns name their parent. `STREAMING`: append-only (rule S3)."""

    TREE = "tree"
    STREAMING = "streaming"


class PauseMode(str, Enum):
    """What becomes of requests when generation is paused. `ABORT`: they end. `RETRACT`: they give their pages back and
    wait. `IN_PLACE`: they stay as they are."""

    ABORT = "abort"
    RETRACT = "retract"
    IN_PLACE = "in_place"


class OnBusy(str, Enum):
    """What a turn does when another turn of its session runs (rule S6)."""

    REJECT = "reject"
    QUEUE = "queue"
    SUPERSEDE = "supersede"
