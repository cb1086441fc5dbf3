from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from actors.model import cache
from actors.model.errors import ModelUnusable


def names_in(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "models").iterdir() if not path.name.endswith(".lock"))


def test_an_entry_is_built_once_for_all_who_ask_at_the_same_time(tmp_path: Path) -> None:
    """Several workers start at once: one converts, the others wait and get the same folder."""
    built: list[Path] = []
    together = threading.Barrier(8)

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "half").write_text("1")
        (folder / "whole").write_text("2")

    def ask() -> bool:
        together.wait()
        folder = cache.entry(tmp_path, "m", build, progress=False)
        return (folder / "whole").read_text() == "2"

    with ThreadPoolExecutor(8) as pool:
        assert all(future.result() for future in [pool.submit(ask) for _ in range(8)])
    assert len(built) == 1
    assert names_in(tmp_path) == ["m"]


def test_a_failed_build_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("1")
        raise ModelUnusable("no")

    with pytest.raises(ModelUnusable, match=r"^no$"):
        cache.entry(tmp_path, "m", fail)
    assert names_in(tmp_path) == []
    assert not cache.has_entry(tmp_path, "m")
    assert cache.entry(tmp_path, "m", lambda folder: None).is_dir()


def test_a_killed_builder_is_cleaned_up_after(tmp_path: Path) -> None:
    """Its lock goes with it; what it left behind is no entry, and the next builder removes it."""
    script = (
        "import sys; from pathlib import Path; from actors.model import cache\n"
        "def build(folder):\n"
        "    (folder / 'half').write_text('1'); print('building', flush=True); sys.stdin.read()\n"
        f"cache.entry(Path({str(tmp_path)!r}), 'm', build)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    with process:
        assert process.stdout.readline() == b"building\n"
        process.kill()
    assert len(names_in(tmp_path)) == 1
    assert not cache.has_entry(tmp_path, "m")
    folder = cache.entry(tmp_path, "m", lambda folder: None)
    assert list(folder.iterdir()) == []
    assert names_in(tmp_path) == ["m"]


def test_names_cannot_leave_the_cache(tmp_path: Path) -> None:
    folder = cache.entry(tmp_path, "../../etc/x y", lambda folder: None)
    assert folder.parent == tmp_path / "models"


def test_a_cache_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelUnusable, match=r"cache .* cannot be written"):
        cache.entry(tmp_path / "file", "m", lambda folder: None)


def test_the_cache_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_root("") == tmp_path / "remora"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.cache_root("") == tmp_path / "home" / ".cache" / "remora"
    assert cache.cache_root("~/elsewhere") == tmp_path / "home" / "elsewhere"
