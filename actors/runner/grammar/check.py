"""A child process that says whether grammars can be compiled, so that one which cannot be stopped can be killed.

    python -m actors.runner.grammar.check

One JSON object per line: {"kind", "text", "limit_s"} in, {"error", "source", "took_s"} out. `source` is the grammar in
the library's own notation, `took_s` the processor time that it cost. A check that takes longer than `limit_s`, or more
memory than a grammar may, ends the process: the kernel sees to it, whatever the library is doing, and also when nobody
is left to kill it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time

from llguidance import LLMatcher

from actors.runner.grammar.source import library_source

MAX_MEMORY_BYTES = 2 * 2**30
"""Address space of this process."""
NICENESS = 10
"""Compiling gives way to serving."""
_MAX_ERROR = 400


def main() -> None:
    """Until standard input ends."""
    os.nice(NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MAX_MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in sys.stdin.buffer:
        ask = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, ask["limit_s"])
        began = time.process_time()
        error, source = check(ask["kind"], ask["text"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        answer = {"error": error, "source": source, "took_s": time.process_time() - began}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


def check(kind: str, text: str) -> tuple[str, str]:
    """(what is wrong with the grammar, for people, or nothing; its source)."""
    try:
        source = library_source(kind, text)
    except (ValueError, RecursionError) as error:
        return _brief(str(error)) or "it cannot be read", ""
    return _brief(LLMatcher.validate_grammar(source)), source


def _brief(message: str) -> str:
    """The library's words without its dump of inner state."""
    message = message.split("\n<state>")[0].strip()
    return message if len(message) <= _MAX_ERROR else message[:_MAX_ERROR] + "…"


if __name__ == "__main__":
    main()
