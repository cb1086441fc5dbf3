"""What /v1/stats says of a worker."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import asdict

from actors.engine.queue_times import BOUNDS_S
from actors.engine.stats import EngineStats

WINDOW_S = 10.0


class Rates:
    """Tokens per second over the last `WINDOW_S`, from the counters of those who ask. Any thread may."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, int]] = deque()
        self._lock = threading.Lock()

    def at(self, now: float, stats: EngineStats) -> dict[str, float]:
        with self._lock:
            self._samples.append((now, stats.prefill_tokens, stats.output_tokens))
            while len(self._samples) > 2 and now - self._samples[1][0] > WINDOW_S:
                self._samples.popleft()
            then, prefill, output = self._samples[0]
        span = now - then
        made = (stats.prefill_tokens - prefill, stats.output_tokens - output)
        prefill_rate, output_rate = (round(tokens / span, 1) if span > 0 else 0.0 for tokens in made)
        return {"prefill_tokens_per_s": prefill_rate, "output_tokens_per_s": output_rate}


def engine_row(stats: EngineStats, now: float) -> dict[str, object]:
    """The engine's part of a worker's row; `now` on its clock. Grammars that are compiled count as waiting."""
    return {
        "pages": asdict(stats.pages),
        "page_size": stats.page_size,
        "kv_tokens": stats.pages.total * stats.page_size,
        "waiting": stats.waiting + stats.compiling,
        "compiling": stats.compiling,
        "oldest_wait_s": 0.0 if stats.oldest_arrival is None else round(now - stats.oldest_arrival, 3),
        "running": stats.running,
        "live": stats.live,
        "live_of": stats.live_of,
        "turns": stats.turns,
        "paused": stats.paused,
        "sessions": stats.sessions,
        "sessions_taken": stats.sessions_taken,
        "resident_sessions": stats.resident_sessions,
        "requests_received": stats.received,
        "ends": [
            {"outcome": outcome, "reason": reason, "stage": stage, "count": count}
            for outcome, reason, stage, count in stats.ends
        ],
        "steps": stats.steps,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "prefill_tokens": stats.prefill_tokens,
        "recomputed_tokens": stats.recomputed_tokens,
        "output_tokens": stats.output_tokens,
        "preemptions": stats.preemptions,
        "evicted_slots": stats.evicted_slots,
        "queue_time": {
            "count": stats.queue_count,
            "sum_s": round(stats.queue_sum_s, 6),
            "at_most": dict(zip((*map(str, BOUNDS_S), "+Inf"), stats.queue_at_most, strict=True)),
        },
    }


def hibernation_row(stats: EngineStats) -> dict[str, int]:
    """The engine's part of it; bytes and files are the shell's."""
    return {
        "waking_requests": stats.waking,
        "woken_turns": stats.woken_turns,
        "missed_pages": stats.missed_pages,
    }


def tables_row(stats: EngineStats) -> dict[str, int]:
    """How many entries the engine's tables have: at rest, none that grows with what has been."""
    return {
        "unreturned": stats.unreturned,
        "recently_ended": stats.recently_ended,
        "tombstones": stats.tombstones,
        "clocks": stats.clocks,
    }
