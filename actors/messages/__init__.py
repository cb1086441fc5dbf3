"""Everything that crosses an actor boundary on the data path: frozen dataclasses of ints, strings and tuples.

Requests travel right (`ToWorker`), events travel left (`Event`). `actors.wire` turns both into msgpack.
Fields are only ever appended, each with a default: an older reader ignores what it does not know.

Times are seconds; durations end in `_s`. Token ids are plain ints in tuples.
"""

from actors.messages.answers import (
    AbortHit,
    AbortReport,
    SessionClosed,
    SessionInfo,
    SessionLeft,
    SessionRolledBack,
)
from actors.messages.control import (
    CloseSession,
    Drain,
    FlushCache,
    ForkSession,
    GetSession,
    IngressLost,
    LeaveSession,
    OpenSession,
    Pause,
    ReceiveSession,
    Resume,
    RollbackSession,
    Shutdown,
    ToWorker,
)
from actors.messages.events import (
    CANNOT_RESUME,
    Event,
    Finished,
    Reply,
    StepTokens,
    Tokens,
    singly,
)
from actors.messages.requests import (
    Abort,
    Grammar,
    GrammarKind,
    Notation,
    SamplingParams,
    Submit,
    TurnOf,
)
from actors.messages.words import (
    OnBusy,
    Outcome,
    PauseMode,
    PromptScore,
    Reason,
    SessionMode,
    Stage,
    TokenIds,
    TokenLogprobs,
)

__all__ = [
    "CANNOT_RESUME",
    "Abort",
    "AbortHit",
    "AbortReport",
    "CloseSession",
    "Drain",
    "Event",
    "Finished",
    "FlushCache",
    "ForkSession",
    "GetSession",
    "Grammar",
    "GrammarKind",
    "IngressLost",
    "LeaveSession",
    "Notation",
    "OnBusy",
    "OpenSession",
    "Outcome",
    "Pause",
    "PauseMode",
    "PromptScore",
    "Reason",
    "ReceiveSession",
    "Reply",
    "Resume",
    "RollbackSession",
    "SamplingParams",
    "SessionClosed",
    "SessionInfo",
    "SessionLeft",
    "SessionMode",
    "SessionRolledBack",
    "Shutdown",
    "Stage",
    "StepTokens",
    "Submit",
    "ToWorker",
    "TokenIds",
    "TokenLogprobs",
    "Tokens",
    "TurnOf",
    "singly",
]
