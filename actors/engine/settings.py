"""What the engine needs to know of its runner and its configuration."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """`num_pages` counts the reserved pages; lengths are in tokens, durations in seconds, 0 = off or unlimited.

    `vocab_bytes[i]`: bytes of token i, for stop strings; empty when the runner knows no text.
    `no_grammars`: why the runner cannot hold an output to a grammar; empty when it can.
    `forecast`: requests are admitted by the KV they will probably need in the end, not by what their prompt needs.
    `hibernate_below`: copies of idle sessions' KV are made while less than this share of the pages is free or could be
    freed without losing any (rule K7). 0: sessions do not hibernate.
    `page_bytes`: size of one page outside the cache.
    `mixed_prefill_tokens`: most tokens of prompts in a step that replies wait for, too; 0: as many as it has room for.
    `worth_sharing_tokens`: a request with at least so many tokens to compute waits for another one that computes most
    of them.
    """

    page_size: int
    num_pages: int
    max_context: int
    vocab_size: int
    eos_ids: frozenset[int] = frozenset()
    bos_id: int | None = None
    vocab_bytes: tuple[bytes, ...] = ()
    no_grammars: str = ""
    hibernate_below: float = 0.0
    page_bytes: int = 0
    max_step_tokens: int = 256
    mixed_prefill_tokens: int = 0
    max_running: int = 64
    max_waiting: int = 1024
    max_queued_turns: int = 8
    depth: int = 0
    prefix_cache: bool = True
    worth_sharing_tokens: int = 128
    forecast: bool = True
    share_prefix_across_tenants: bool = False
    tombstone_s: float = 30.0
    session_idle_timeout_s: float = 0.0
    session_capacity_tokens: int = 0
    waiting_timeout_s: float = 0.0
    running_timeout_s: float = 0.0
    max_waiting_timeout_s: float = 0.0
    max_running_timeout_s: float = 0.0
    max_deadline_s: float = 0.0


def bounded(asked: float | None, default: float, maximum: float) -> float:
    """A request's timeout: what it asked for, else the default, never beyond the server's maximum. 0 = off."""
    value = default if asked is None else asked
    if maximum and (not value or value > maximum):
        return maximum
    return value
