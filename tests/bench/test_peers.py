"""The comparison with the peers: how servers are found, started and stopped, what is made of the figures, and how they
are shown."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench import peers
from tests.bench.compare import labelled, table
from tests.bench.figures import BenchError, Reply, Summary, crowd_figures, gap_figures, summarise
from tests.bench.free_port import free_port
from tests.bench.peer_servers import LLAMA_SERVER, Missing, Setting, llama_server, remora
from tests.bench.plots import HOW_TO_GET_IT, NoPlots, by_streams, by_turn, draw
from tests.bench.result_tables import BEGIN, END, main, put_into
from tests.bench.served import Launch, started, version_of
from tests.bench.servers_report import ServerReport, ServersReport, target_rows, targets_table
from tests.bench.written import read

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"version": "1.2", "workers": [{"runner": "fused"}, {"runner": "fused"}]}'
        self.send_response(200 if self.path in ("/health", "/version", "/v1/stats") else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def setting(folder: Path) -> Setting:
    return Setting(folder=folder / "model", gguf=folder / "model.gguf", model="m", threads=2, logs=folder)


def one(value: float) -> Summary:
    return summarise([{"x": value}])["x"]


def report(folder: Path, **servers: dict[str, dict[str, float]]) -> Path:
    """A written comparison: `servers[name][workload][figure]`."""
    made = ServersReport(
        judged=peers.OURS,
        targets=peers.TARGETS,
        taken_at="2030-01-01T00:00:00+00:00",
        model="m",
        seed=7,
        rounds=1,
        repeats=1,
        threads=2,
        load_before=0.0,
        shapes={},
    )
    for name, workloads in servers.items():
        made.servers[name] = ServerReport(version="1")
        made.servers[name].add({workload: [figures] for workload, figures in workloads.items()})
    made.write(folder / "peers.json")
    return folder / "peers.json"


def rates(decode: float, ttft: float) -> dict[str, dict[str, float]]:
    turns = {"ttft_p50_turn_1_s": ttft, "ttft_p50_turn_2_s": 2 * ttft}
    return {"decode_8": {"decode_tok_s": decode}, "chat": {"output_tok_s": 1.0, "ttft_p50_s": ttft, **turns}}


def test_a_server_is_awaited_asked_and_stopped(tmp_path: Path) -> None:
    port = free_port()
    launch = Launch(
        name="it", command=[sys.executable, "-c", SERVER, str(port)], port=port, version=("/version", "version")
    )
    with started(launch, tmp_path):
        assert version_of(launch) == "1.2"
        assert version_of(replace(launch, version=None)).endswith(" (fused)")
    with pytest.raises(BenchError, match="does not say its version"):
        version_of(launch)


def test_a_server_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    launch = Launch(name="it", command=[sys.executable, "-c", "raise SystemExit('no room')"], port=free_port())
    with pytest.raises(BenchError, match=r"(?s)it ended with 1.*no room"), started(launch, tmp_path):
        pass


def test_a_peer_that_is_missing_is_named_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(LLAMA_SERVER, raising=False)
    with pytest.raises(Missing, match=r"not on the PATH.*cmake"):
        llama_server(setting(tmp_path))
    monkeypatch.setenv(LLAMA_SERVER, str(tmp_path / "gone"))
    with pytest.raises(Missing, match="is no program"):
        llama_server(setting(tmp_path))
    monkeypatch.setenv(LLAMA_SERVER, sys.executable)
    assert llama_server(setting(tmp_path)).command[0] == sys.executable


def test_a_comparison_needs_somebody_to_compare_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in (LLAMA_SERVER, "REMORA_VLLM"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(BenchError, match="no peer is installed"):
        peers.found_servers(setting(tmp_path), None)
    assert "llama-server: left out" in capsys.readouterr().err
    with pytest.raises(Missing):
        peers.found_servers(setting(tmp_path), ["remora", "vllm"])
    assert peers.found_servers(setting(tmp_path), ["remora"]) == ["remora"]


def test_all_servers_have_the_same_threads_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LLAMA_SERVER, sys.executable)
    ours, theirs = remora(setting(tmp_path)).command, llama_server(setting(tmp_path)).command
    assert {"workers.threads=2", "model.dtype=bfloat16", f"model.id={tmp_path / 'model'}"} <= set(ours)
    assert theirs[theirs.index("-t") + 1] == theirs[theirs.index("-tb") + 1] == "2"


def test_int8_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not int8 has the dtype that the CPU is best at: those that lack bf16 have int8, too."""
    monkeypatch.setenv(LLAMA_SERVER, sys.executable)
    asked = replace(setting(tmp_path), quantization="int8")
    ours = remora(asked)
    assert {"model.quantization=int8", "model.dtype=auto"} <= set(ours.command)
    assert not any(word.endswith("int8") for word in llama_server(asked).command)
    assert not any(word.startswith("model.quantization") for word in remora(setting(tmp_path)).command)


def test_targets_are_against_the_best_peer() -> None:
    """Of a rate the highest, of a time the lowest."""
    medians = {"remora": rates(160.0, 0.4), "a": rates(100.0, 2.0), "b": rates(80.0, 1.0)}
    rows = {row.name: row for row in target_rows(medians, peers.OURS, peers.TARGETS)}
    decode, wait = rows["decode, 8 streams, tok/s"], rows["chat, TTFT p50, s"]
    assert (decode.best, decode.ratio, decode.bound, decode.reached) == ("a", 1.6, "≥ 1.6", True)
    assert (wait.best, wait.ratio, wait.bound, wait.reached) == ("b", 0.4, "≤ 0.2", False)
    assert "NOT YET" in targets_table(list(medians), list(rows.values()))
    assert target_rows({"remora": rates(1.0, 1.0)}, peers.OURS, peers.TARGETS) == []


def test_what_was_measured_becomes_a_page(tmp_path: Path) -> None:
    """No figure is typed by hand: the page takes them from the file, between its markers, again and again."""
    path = report(tmp_path, remora=rates(170.0, 0.1), other=rates(100.0, 1.0))
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\nthe end\n", encoding="utf-8")
    assert main([str(path), "--into", str(page)]) == main([str(path), "--into", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Title\n")
    assert text.endswith(f"{END}\nthe end\n")
    assert "old" not in text
    assert "| decode, 8 streams, tok/s | 170 | 100 | other | 1.70 | ≥ 1.6 | reached |" in text
    assert "| chat `ttft_p50_s` | 0.100 (0.100–0.100) | 1 (1–1) |" in text
    assert text.count("remora, other by turns") == 1
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(BenchError, match="has not the two lines"):
        put_into(page, "x")


def test_measurements_are_compared_as_ratios_to_the_first(tmp_path: Path) -> None:
    path = report(tmp_path, base=rates(100.0, 1.0), faster={"decode_8": {"decode_tok_s": 150.0}})
    shown = table(labelled([path]))
    assert "×1.50" in shown
    assert "chat" not in shown
    assert [label for label, _ in labelled([path, path])] == ["base (peers)", "faster (peers)"] * 2
    with pytest.raises(BenchError, match="no workload in common"):
        table([("a", {"chat": {}}), ("b", {"prefill": {}})])


@pytest.mark.parametrize("text", ["{", "[]", '{"label": "x"}', '{"servers": {"a": {"results": {"w": {"f": {}}}}}}'])
def test_a_file_that_holds_no_results_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BenchError, match="does not hold results"):
        read(path)
    with pytest.raises(BenchError, match="No such file"):
        read(tmp_path / "gone.json")


def test_lines_are_drawn_in_the_order_of_turns_and_streams() -> None:
    turns = {f"ttft_p50_turn_{number}_s": one(float(number)) for number in (10, 9, 2)}
    assert [at for at, _ in by_turn([("a", {"chat": turns})])["a: chat"]] == [2, 9, 10]
    results = {f"decode_{streams}": {"decode_tok_s": one(1.0)} for streams in (16, 1, 8)}
    assert [at for at, _ in by_streams([("a", results)])["a"]] == [1, 8, 16]
    assert by_streams([("a", {"chat": turns})]) == {}


def test_pictures_are_written_beside_the_results(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    measured = [("a", read(report(tmp_path, a=rates(1.0, 1.0))).measured["a"])]
    written = draw(measured, tmp_path / "results")
    assert [path.name for path in written] == ["results.ttft.png", "results.throughput.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    assert draw([("a", {"prefill": {}})], tmp_path / "none") == []


def test_without_matplotlib_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NoPlots) as raised:
        draw([("a", {"decode_1": {"decode_tok_s": one(1.0)}})], tmp_path / "results")
    assert str(raised.value) == HOW_TO_GET_IT


def reply(sent: float, arrivals: tuple[float, ...], cached: int | None) -> Reply:
    return Reply(
        sent=sent,
        first=arrivals[0],
        ended=arrivals[-1],
        prompt_tokens=100,
        completion_tokens=10,
        cached_tokens=cached,
        arrivals=arrivals,
    )


def test_a_crowd_has_its_throughput_its_waits_and_its_gaps() -> None:
    crowd = [reply(0.0, (1.0, 2.0, 5.0), 50), reply(0.0, (2.0, 4.0), 100)]
    figures = gap_figures(crowd)
    assert (figures["gap_p50_s"], figures["gap_most_s"]) == (2.0, 3.0)
    assert (figures["output_tok_s"], figures["ttft_p50_s"], figures["cached_ratio"]) == (20 / 5, 1.5, 0.75)
    assert "cached_ratio" not in crowd_figures([reply(0.0, (1.0,), None), *crowd])
    with pytest.raises(BenchError, match="no gaps"):
        gap_figures([reply(0.0, (1.0,), 0)])


def test_options_are_recorded(tmp_path: Path) -> None:
    tree = json.loads(report(tmp_path, remora=rates(2.0, 1.0), b=rates(1.0, 1.0)).read_text(encoding="utf-8"))
    assert (tree["seed"], tree["threads"], tree["rounds"]) == (7, 2, 1)
    assert tree["machine"]["cores"] >= 1
    assert tree["targets"][0]["ratio"] == 2.0
