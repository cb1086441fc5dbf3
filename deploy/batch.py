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

    async def run(self, conversations: Iterator[dict[str, Any]], concurrency: int) -> None:
        """`concurrency` of them at a time."""

        async def work() -> None:
            for conversation in conversations:  # Shared: each takes the next one.
                await self._converse(conversation)

        await asyncio.gather(*(work() for _ in range(concurrency)))

    async def _converse(self, conversation: dict[str, Any]) -> None:
        session = f"{self._name}/{conversation['id']}"
        answers: list[dict[str, Any]] = []
        error = None
        try:
            for number in range(len(conversation["turns"])):
                answer = await self._turn(session, conversation, number)
                answers.append(answer)
        except Failed as failed:
            error = str(failed)
        self._write({"id": conversation["id"], "answers": answers, "error": error})
        if error is None:  # Its results are forgotten with it: not before they are on the disk.
            await self._close(session)

    async def _close(self, session: str) -> None:
        try:
            await self._http.delete(f"/v1/sessions/{quote(session, safe='')}")
        except httpx.TransportError as broken:
            print(f"batch: {session} stays open until it is idle for too long: {broken}", file=sys.stderr)

    async def _turn(self, session: str, conversation: dict[str, Any], number: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": conversation["turns"][number]}]
        if number == 0 and conversation.get("system"):
            messages.insert(0, {"role": "system", "content": conversation["system"]})
        body = {
            **self._options,
            "messages": messages,
            "session": {"id": session, **({"create": True} if number == 0 else {})},
            "rid": f"{session}#{number + 1}",  # As the header Idempotency-Key, which takes ASCII only.
            "on_duplicate": "join",  # A try that was cut off may still run: then hear it to its end.
        }
        answer = await self._post(body)
        choice = answer["choices"][0]
        return {
            "text": choice["message"]["content"],
            "finish_reason": choice["finish_reason"],
            "usage": answer["usage"],
            "replayed": answer.get("replayed", False),
        }

    async def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        """Ask until there is an answer: its name makes a second try harmless (rule T2)."""
        why = ""
        for attempt in range(TRIES):
            pause_s = min(LONGEST_PAUSE_S, PAUSE_S * 2**attempt)
            try:
                reply = await self._http.post("/v1/chat/completions", json=body)
            except httpx.TransportError as broken:
                why = f"{type(broken).__name__}: {broken}"
            else:
                if reply.is_success:
                    answer: dict[str, Any] = reply.json()
                    return answer
                why = f"{reply.status_code}: {reply.text[:500]}"
                if not _worth_a_retry(reply):
                    break
                pause_s = max(pause_s, float(reply.headers.get("retry-after", 0)))
            await asyncio.sleep(pause_s)
        raise Failed(why)

    def _write(self, line: dict[str, Any]) -> None:
        """On the disk when this returns."""
        self._output.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._output.flush()
        os.fsync(self._output.fileno())
        self.done += 1
        self.failed += line["error"] is not None


def _worth_a_retry(reply: httpx.Response) -> bool:
    try:
        return bool(reply.json()["error"]["retryable"])
    except (ValueError, KeyError, TypeError):
        return reply.status_code >= 500  # Not our error body: a proxy's, while nobody serves behind it.


def conversations_in(path: Path) -> list[dict[str, Any]]:
    """Raises ValueError for a line that is no conversation, and for an id that comes twice."""
    found: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        tree = json.loads(line)
        if not isinstance(tree, dict) or not isinstance(tree.get("id"), str) or not isinstance(tree.get("turns"), list):
            raise ValueError(f"{path}, line {number}: expected an object with `id`, a string, and `turns`, a list")
        if tree["id"] in found:
            raise ValueError(f"{path}, line {number}: the id {tree['id']!r} was there before")
        found[tree["id"]] = tree
    return list(found.values())


def kept(path: Path) -> list[str]:
    """The lines of an earlier run whose conversations are complete. One cut off by a crash is none."""
    lines = []
    for line in path.read_text(encoding="utf-8").split("\n") if path.exists() else []:
        try:
            complete = json.loads(line)["error"] is None
        except ValueError:
            complete = False
        if complete:
            lines.append(line)
    return lines


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
