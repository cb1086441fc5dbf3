"""Which ends of an attempt another attempt may mend, unseen by the client: pure (rules T3, T4)."""

from __future__ import annotations

from actors.messages import CANNOT_RESUME, Finished, Reason

_ELSEWHERE = frozenset({Reason.WORKER_LOST, Reason.WORKER_DRAINING})
"""Refusals that another worker may not give."""
_GONE_THERE = frozenset({Reason.SESSION_UNKNOWN, Reason.SESSION_CLOSING})
"""What a session's former owner says, or that of a former session of its id."""


def may_repeat(end: Finished, *, began: bool, resumes: bool, remembered: bool) -> bool:
    """`began`: tokens were delivered, so that only who resumes goes on. `remembered`: where the session lives was
    decided by what this ingress remembered, which may be old."""
    elsewhere = end.redirect or end.reason in _ELSEWHERE
    if began:
        return resumes and elsewhere and end.param != CANNOT_RESUME
    return elsewhere or (remembered and end.reason in _GONE_THERE)


def was_misplaced(end: Finished) -> bool:
    """Nothing is wrong with the worker; it is the wrong one, and the right one may be asked at once."""
    return end.reason in _GONE_THERE and not end.redirect
