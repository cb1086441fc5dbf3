"""The benchmark client: its parser, its statistics, its prompts, and every workload against the real application."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn

from configs import EngineConfig
from tests.bench.__main__ import bench
from tests.bench.client import ReplyReader, SseParser, connect
from tests.bench.figures import (
    BenchError,
    Reply,
    chat_figures,
    decode_figures,
    prefill_figures,
    quantile,
    summarise,
)
from tests.bench.texts import WORDS, Sizing, calibrate, fresh_prompt
from tests.bench.workloads import NAMES, Shapes
from tests.ingress.asgi import eventually, run
from tests.ingress.local import Cluster, cluster

SMALL = Shapes(
    prefill_tokens=300,
    prefill_prompts=2,
    decode_prompt_words=2,
    decode_tokens=100,
    decode_concurrency=(1, 3),
    chats=2,
    turns=3,
    turn_tokens=40,
    reply_tokens=6,
    long_chats=2,
    long_turns=2,
    long_turn_tokens=80,
    long_reply_tokens=4,
    idle_sessions=5,
    opening_at_once=2,
    beside_streams=2,
    storm_clients=6,
    storm_tokens=100,
    storm_leave_s=0.05,
    shared_requests=3,
    shared_tokens=200,
    shared_reply_tokens=4,
)


def reply(sent: float, first: float, ended: float, **counts: int | None) -> Reply:
    numbers = {"prompt_tokens": 10, "completion_tokens": 11, "cached_tokens": 0, **counts}
    return Reply(sent=sent, first=first, ended=ended, **numbers)  # type: ignore[arg-type]


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[str, Cluster]]:
    """(URL, cluster) of the application with real workers, over a real socket."""
    async with cluster(folder, step_s=0.002, engine=EngineConfig(kv_tokens=16384)) as at:
        web = uvicorn.Server(uvicorn.Config(at.app, port=0, log_level="warning", lifespan="on"))
        task = asyncio.create_task(web.serve())
        await eventually(lambda: web.started)
        try:
            yield f"http://127.0.0.1:{web.servers[0].sockets[0].getsockname()[1]}", at
        finally:
            web.should_exit = True
            await task


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Cluster]]:
    """The same on a thread of its own, for clients that bring their own event loop."""
    ready: list[tuple[str, Cluster]] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with served(tmp_path) as found:
            ready.append(found)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(10)
    yield ready[0]
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_however_the_bytes_are_cut(size: int) -> None:
    stream = (
        b": keep-alive\n\ndata: one\n\nevent: error\r\ndata:two\r\n\r\n\n"
        + "data: ä\ndata: b\n\n".encode()
        + b"data: not yet"
    )
    parser = SseParser()
    found = [data for at in range(0, len(stream), size) for data in parser.feed(stream[at : at + size])]
    assert found == [b"one", b"two", "ä\nb".encode()]


def chunk(content: str | None, finish: str | None = None) -> bytes:
    return json.dumps({"choices": [{"delta": {"content": content}, "finish_reason": finish}]}).encode()


USAGE = b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}'


def test_a_reply_begins_with_its_first_text_and_ends_with_its_finish_reason() -> None:
    reader = ReplyReader(sent=1.0)
    for data, now in ((chunk(""), 2.0), (chunk(None), 2.5), (chunk("a"), 3.0), (chunk("b"), 4.0)):
        reader.take(data, now)
    for data, now in ((chunk(None, "length"), 5.0), (USAGE, 6.0), (b"[DONE]", 7.0)):
        reader.take(data, now)
    expected = Reply(
        sent=1.0,
        first=3.0,
        ended=5.0,
        prompt_tokens=9,
        completion_tokens=2,
        cached_tokens=None,
        text="ab",
        arrivals=(3.0, 4.0),
    )
    assert reader.reply() == expected


def test_a_reply_without_visible_text_is_timed_by_its_end() -> None:
    reader = ReplyReader(sent=1.0)
    reader.take(chunk(None, "length"), 2.0)
    reader.take(USAGE, 2.0)
    assert reader.reply().ttft_s == 1.0


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ([chunk("a"), USAGE], "finish_reason"),
        ([chunk("a", "length")], "no usage"),
        ([chunk("a"), b'{"error": {"reason": "worker_lost"}}'], "worker_lost"),
    ],
)
def test_a_broken_stream_is_no_measurement(stream: list[bytes], message: str) -> None:
    reader = ReplyReader(sent=0.0)

    def read() -> Reply:
        for data in stream:
            reader.take(data, 1.0)
        return reader.reply()

    with pytest.raises(BenchError, match=message):
        read()


def test_quantile_is_a_value_that_occurred() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert quantile(values, 0.99) == 99.0
    assert quantile(values, 0.5) == 50.0
    assert quantile(values[:64], 0.99) == 100.0
    assert quantile([3.0], 0.99) == quantile([3.0], 0.0) == 3.0


def test_summaries_keep_the_spread() -> None:
    summary = summarise([{"x": 3.0}, {"x": 1.0}, {"x": 2.0}])["x"]
    assert (summary.median, summary.least, summary.most, summary.values) == (2.0, 1.0, 3.0, (3.0, 1.0, 2.0))


def test_prefill_counts_only_what_was_computed() -> None:
    replies = [reply(0, 2, 2, prompt_tokens=110, cached_tokens=10), reply(2, 3, 3, prompt_tokens=100)]
    assert prefill_figures(replies)["prefill_tok_s"] == (50 + 100) / 2


def test_decode_adds_up_streams_that_run_together() -> None:
    figures = decode_figures([reply(0, 1, 3), reply(0, 2, 4)])
    assert figures["decode_tok_s"] == 10 / 2 + 10 / 2
    assert figures["with_prefill_tok_s"] == 22 / 4
    assert figures["overlap"] == 1 / 2


@pytest.mark.parametrize("one", [reply(0, 1, 1), reply(0, 1, 3, completion_tokens=1)])
def test_a_reply_in_one_piece_has_no_rate(one: Reply) -> None:
    with pytest.raises(BenchError, match="in one piece"):
        decode_figures([reply(0, 1, 3), one])


def test_chat_figures_are_of_all_turns_and_of_each() -> None:
    chats = [
        [reply(0, 1, 2, cached_tokens=0), reply(2, 4, 5, cached_tokens=5)],
        [reply(0, 3, 4, cached_tokens=0), reply(4, 8, 10, cached_tokens=5)],
    ]
    figures = chat_figures(chats)
    assert figures["output_tok_s"] == 44 / 10
    assert (figures["ttft_p50_turn_1_s"], figures["ttft_p50_turn_2_s"]) == (2.0, 3.0)
    assert (figures["ttft_p99_turn_1_s"], figures["ttft_p99_turn_2_s"]) == (3.0, 4.0)
    assert (figures["ttft_p50_s"], figures["ttft_p99_s"], figures["cached_ratio"]) == (2.5, 4.0, 0.25)
    assert "cached_ratio" not in chat_figures([[reply(0, 1, 2, cached_tokens=None)]])


def test_prompts_repeat_with_their_seed_and_share_no_beginning() -> None:
    assert fresh_prompt(random.Random("a"), 9) == fresh_prompt(random.Random("a"), 9)
    one, other = fresh_prompt(random.Random("a"), 9), fresh_prompt(random.Random("b"), 9)
    assert one[0]["content"] != other[0]["content"]
    assert len(one[1]["content"].split()) == 9
    assert len(set(WORDS)) == len(WORDS)


def test_sizes_come_from_what_the_server_counts(tmp_path: Path) -> None:
    async def check() -> None:
        async with served(tmp_path) as (url, _), connect(url) as client:
            sizing = await calibrate(client, random.Random(1))
            asked = fresh_prompt(random.Random(2), sizing.words_of_prompt(600))
            assert (await client.chat(asked, 1)).prompt_tokens == pytest.approx(600, rel=0.1)

    run(check())
    assert Sizing(tokens_per_word=1.25, overhead=12).words_of(200) == 160
    assert Sizing(tokens_per_word=1.25, overhead=12).words_of_prompt(512) == 400


@pytest.mark.parametrize("stateless", [False, True])
def test_every_workload_runs_against_the_application(
    server: tuple[str, Cluster], tmp_path: Path, capsys: pytest.CaptureFixture[str], stateless: bool
) -> None:
    """K1: in a session the next turn finds its context cached. K3: a system prompt that many have is computed once.
    A1: who leaves gives his pages back. The bench closes the sessions it opened."""
    url, at = server
    path = tmp_path / "results" / "one.json"
    argv = ["--url", url, "--repeats", "2", "--seed", "7", "--json", str(path), "--label", "mine"]
    bench([*argv, "--stateless"] if stateless else argv, SMALL)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert (written["label"], written["seed"], written["repeats"]) == ("mine", 7, 2)
    assert written["target"]["owner"] == "remora"
    assert written["machine"]["cores"] >= 1
    results = written["results"]
    assert list(results) == ["prefill", "decode_1", "decode_3", *NAMES[2:]]
    assert all(len(figure["values"]) == 2 for figures in results.values() for figure in figures.values())
    assert results["prefill"]["prompt_tokens"]["median"] == pytest.approx(300, rel=0.2)
    assert results["decode_3"]["output_tokens"]["median"] == 3 * 100
    assert results["chat"]["output_tokens"]["median"] == 2 * 3 * 6
    assert results["chat"]["cached_ratio"]["least"] > 0
    assert [name for name in results["chat"] if "turn" in name] == [
        f"ttft_{quantile}_turn_{n}_s" for n in (1, 2, 3) for quantile in ("p50", "p99")
    ]
    assert results["long_chat"]["output_tokens"]["median"] == 2 * 2 * 4
    assert results["idle_sessions"]["idle_sessions"]["median"] == 5
    assert results["idle_sessions"]["chat_ttft_p50_s_share"]["least"] > 0
    assert results["abort_storm"]["clients"]["median"] == 6
    assert results["abort_storm"]["left"]["least"] >= 1
    assert results["shared_prompt"]["cached_ratio"]["least"] > 0.5
    shown = capsys.readouterr().out
    assert "decode_3" in shown
    assert str(path) in shown
    assert at.pool.store.count("default") == 0
    assert at.pages()["request_owned"] == 0


def test_a_server_that_is_not_there_or_refuses_is_an_error(server: tuple[str, Cluster]) -> None:
    url, _ = server
    with pytest.raises(BenchError, match="ConnectError"):
        bench(["--url", "http://127.0.0.1:1"], SMALL)
    with pytest.raises(BenchError, match="no model 'other'"):
        bench(["--url", url, "--model", "other"], SMALL)


def test_the_engine_is_measured_without_a_server(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    report = bench(["--in-process", "--runner", "toy", "--repeats", "1", "--json", str(path)], SMALL)
    assert list(report.results) == ["prefill", "decode_1", "decode_3"]
    assert report.results["prefill"]["prompt_tokens"].median == 300
    assert report.results["decode_3"]["output_tokens"].median == 3 * 100


@pytest.mark.parametrize(
    "argv", [["--workloads", "sleep"], ["--in-process", "--workloads", "chat"], ["--repeats", "0"]]
)
def test_a_wrong_option_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench(argv, SMALL)
    assert argv[-2] in capsys.readouterr().err
