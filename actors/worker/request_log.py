"""One line per request that ended on a worker, where `workers.request_log` asks for it.

As in the ingress's access log, each line is a JSON object in ASCII, without prompts and texts. A request that was sent
again, or went on elsewhere, has a line for each of its attempts.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging.handlers import WatchedFileHandler

from actors.messages import Event, Finished, Submit
from actors.worker.outbox import Outbox
from configs import RemoraConfig


@dataclass(frozen=True, slots=True)
class _Begun:
    submit: Submit
    at: float


class LoggingOutbox(Outbox):
    """An outbox that notes what was asked, and writes of it when its end leaves. Raises OSError when the file cannot be
    written."""

    def __init__(
        self,
        lease_s: float,
        clock: Callable[[], float],
        linger_s: float,
        *,
        worker_id: str,
        path: str,
        wall_clock: Callable[[], float],
    ) -> None:
        super().__init__(lease_s, clock, linger_s)
        self._worker_id = worker_id
        self._wall_clock = wall_clock
        self._handler = WatchedFileHandler(path, encoding="ascii")
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._begun: dict[str, _Begun] = {}
        self._begun_lock = threading.Lock()

    def begin(self, submit: Submit) -> None:
        with self._begun_lock:
            self._begun[submit.key] = _Begun(submit, self._clock())

    def publish(self, events: Iterable[Event]) -> None:
        told = list(events)
        for event in told:
            if isinstance(event, Finished):
                with self._begun_lock:
                    begun = self._begun.pop(event.key, None)
                if begun is not None:
                    self._write(json.dumps(self._fields(begun, event), ensure_ascii=True))
        super().publish(told)  # Whoever hears of an end finds it in the log.

    def close(self) -> None:
        self._handler.close()

    def _write(self, text: str) -> None:
        self._handler.handle(logging.LogRecord("remora.requests", logging.INFO, "", 0, text, None, None))

    def _fields(self, begun: _Begun, end: Finished) -> dict[str, object]:
        submit = begun.submit
        fields: dict[str, object] = {
            "at": round(self._wall_clock(), 3),
            "worker": self._worker_id,
            "rid": submit.rid,
            "tenant": submit.tenant,
            "session": submit.turn.session_id if submit.turn is not None else None,
            "outcome": end.outcome.value,
            "reason": end.reason.value if end.reason is not None else None,
            "stage": end.stage.value if end.stage is not None else None,
            "prompt_tokens": end.prompt_tokens,
            "cached_tokens": end.cached_tokens,
            "completion_tokens": end.completion_tokens,
            "ms": round((self._clock() - begun.at) * 1000, 1),
        }
        if submit.trace:
            _, fields["trace_id"], fields["parent_id"], _ = submit.trace.split("-")
        return fields


def request_log(
    worker_id: str, config: RemoraConfig, clock: Callable[[], float], wall_clock: Callable[[], float]
) -> LoggingOutbox | None:
    """The outbox of a worker that is to keep a log. Raises OSError."""
    path, lease_s, linger_s = config.workers.request_log, config.cluster.ingress_lease_s, config.ingress.flush_s
    if not path:
        return None
    return LoggingOutbox(lease_s, clock, linger_s, worker_id=worker_id, path=path, wall_clock=wall_clock)
