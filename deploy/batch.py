"""Run a batch of conversations against a deployment: JSON lines in, JSON lines out. Made for `ray job submit`:

    ray job submit --working-dir . -- python deploy/batch.py --model NAME --input in.jsonl --output /data/out.jsonl

In:   {"id": "c1", "system": "Be brief.", "turns": ["Hello!", "And in French?"]}
Out:  {"id": "c1", "answers": [{"text": …, "finish_reason": …, "usage": {…}, "replayed": false}, …], "error": null}

Each conversation is a session, so that a turn costs no more than its own words. Each turn has a name of its own: run
again after a crash, the batch goes on. Conversations with all their answers in the output are not run again, and of the
others the turns that are done are told again, not made again. Give each batch its own --batch. Exit status 1: some
conversations failed (each says why in the output); run it again for these.
"""

# ruff: noqa: T201 - a command line prints

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import quote

import httpx

TRIES = 8
PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
TURN_S = 600.0


class Failed(Exception):
    """Why a conversation ends here."""


class Batch:
    """Conversations in, one line of `output` each. `options`: fields of every request, as in {"max_tokens": 64}."""

    def __init__(self, http: httpx.AsyncClient, name: str, options: dict[str, Any], output: TextIO) -> None:
        self._http = http
        self._name = name
        self._options = options
        self._output = output
        self.failed = 0
        self.done = 0

    async def run(args: argparse.Namespace, left: list[dict[str, Any]], output: TextIO) -> Batch:
    options = {**json.loads(args.options), "model": args.model}
    key = os.environ.get("REMORA_API_KEY")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=args.concurrency)
    url = args.url.rstrip("/")
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=TURN_S, limits=limits) as http:
        batch = Batch(http, args.batch or Path(args.input).stem, options, output)
        await batch.run(iter(left), args.concurrency)
    return batch


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a batch of conversations against a deployment.")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the deployment, its route prefix included")
    parser.add_argument("--model", required=True, help="as /v1/models names it")
    parser.add_argument("--input", required=True, help="conversations, one JSON object a line")
    parser.add_argument("--output", required=True, help="answers, one JSON object a line; gone on with if it exists")
    parser.add_argument("--batch", default="", help="what the sessions' names begin with; default: the input's name")
    parser.add_argument("--options", default='{"temperature": 0}', help="JSON: fields of every request")
    parser.add_argument("--concurrency", type=int, default=16, help="conversations at a time")
    args = parser.parse_args()
    conversations, target = conversations_in(Path(args.input)), Path(args.output)
    before = kept(target)
    ids = {json.loads(line)["id"] for line in before}
    part = target.with_name(f"{target.name}.part")
    part.write_text("".join(f"{line}\n" for line in before), encoding="utf-8")
    part.replace(target)
    with target.open("a", encoding="utf-8") as output:
        batch = asyncio.run(run(args, [one for one in conversations if one["id"] not in ids], output))
    print(f"{batch.done} conversations run, {len(ids)} done before, {batch.failed} failed")
    return 1 if batch.failed else 0


if __name__ == "__main__":
    sys.exit(main())
