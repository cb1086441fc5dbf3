"""What Ray says when something dies, in one line for people."""

from __future__ import annotations

import re

_EXCEPTION_LINE = re.compile(
    r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|NotFound|Unusable|Unavailable|Interrupt|Exit)): (.+)$"
)
_EXIT = re.compile(r"Worker exit detail: (.+?)(?:\.? *$)", re.MULTILINE)
_BECAUSE = re.compile(r"The actor (?:is dead|died) because (?:its|the actor's) (.+?)\.? *$", re.MULTILINE)
_OUT_OF_MEMORY = re.compile(r"OutOfMemory|out of memory|low on memory|Cannot allocate memory", re.IGNORECASE)
_VANISHED = re.compile(r"unexpectedly exits with a connection error")
"""Ray's words for a process that ended without a word; it then lists the OOM killer among the causes, always."""
_LONGEST = 600


def cause_of(error: BaseException) -> str:
    """The exception that ended an actor's constructor, else how its process ended, else the first line."""
    text = str(error).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "creation task" in text or "Traceback" in text:
        raised = [found for line in lines if (found := _EXCEPTION_LINE.match(line))]
        if raised:
            name, message = raised[-1].groups()
            return _short(message if name in ("ModelNotFound", "ModelUnusable", "StoreError") else f"{name}: {message}")
        return _short(lines[-1])
    if _VANISHED.search(text):
        return "its process vanished: killed (by hand or for want of memory), or crashed"
    if _OUT_OF_MEMORY.search(text):
        return "out of memory: its process was ended by the system"
    exited = _EXIT.search(text)
    if exited:
        return _short(f"its process ended: {exited.group(1)}")
    because = _BECAUSE.search(text)
    if because:
        return _short(f"its {because.group(1)}")
    return _short(lines[0]) if lines else type(error).__name__


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
