"""Models of the Hugging Face hub, and of its local cache when the hub cannot be reached."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from actors.model.errors import ModelNotFound

WANTED = ("*.safetensors", "*.safetensors.index.json", "*.json", "chat_template.jinja")
UNWANTED = ("*/*",)
"""Sub-folders hold other formats of the same weights."""
_PROBE_S = 5.0


def cached(model_id: str) -> Path | None:
    """The folder of a complete earlier download, without any network; None if there is none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            model_id, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED), local_files_only=True
        )
    except LocalEntryNotFoundError:
        return None
    path = Path(folder)
    has_text = all((path / name).is_file() for name in ("config.json", "tokenizer.json"))
    return path if has_text and any(path.glob("*.safetensors")) else None


def reachable(model_id: str) -> bool:
    """Whether the hub answers about this model within a few seconds, whatever the resolver or a proxy does."""
    answer: list[bool] = []

    def ask() -> None:
        answer.append(_describes(model_id))

    probe = threading.Thread(target=ask, name="hub-probe", daemon=True)
    probe.start()
    probe.join(_PROBE_S)
    return bool(answer) and answer[0]


def _describes(model_id: str) -> bool:
    from huggingface_hub import HfApi

    try:
        HfApi().model_info(model_id, timeout=_PROBE_S)
    except Exception:  # any answer but the model's description means the same here, and each client version has its own
        return False
    return True


def download(model_id: str, *, progress: bool = True) -> Path:
    """Download what is needed of a model into the hub's cache, or take it from there. Raises ModelNotFound."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError
    from huggingface_hub.utils import HFValidationError

    options: dict[str, Any] = {} if progress else {"tqdm_class": _silent_bar()}
    try:
        folder = snapshot_download(
            model_id, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED), etag_timeout=_PROBE_S, **options
        )
    except GatedRepoError as error:
        raise ModelNotFound(f"{model_id}: the hub wants you to accept its terms and to log in first") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(f"{model_id}: there is no such model on the hub (or it is private)") from error
    except LocalEntryNotFoundError as error:
        raise ModelNotFound(
            f"{model_id}: the hub cannot be reached and the model is not in its local cache. Name a model folder or "
            ".gguf file, or download it where there is a network (`hf download`)."
        ) from error
    except HFValidationError as error:
        raise ModelNotFound(f"{model_id!r} is neither a file nor a folder here, nor a hub id: {error}") from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelNotFound(f"{model_id}: the download from the hub failed: {error}") from error
    return Path(folder)


def _silent_bar() -> type:
    from tqdm import tqdm

    class SilentBar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "disable": True})

    return SilentBar
