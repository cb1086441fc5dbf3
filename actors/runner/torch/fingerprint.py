"""A short name for a model's weights: KV of another model must never be taken for this one's."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_SAMPLES = 256
_SAMPLE_BYTES = 4096
_CONFIG = "config.json"


def fingerprint(folder: str | os.PathLike[str]) -> str:
    """Hex digits made from config.json and from each safetensors file: name, size, and samples all over it.

    Samples, since reading all of a large model would take as long as loading it. The first holds the start of the table
    of tensors. Raises OSError for what cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update((Path(folder) / _CONFIG).read_bytes())
    for path in sorted(Path(folder).glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"\0{path.name}\0{size}\0".encode())
        with path.open("rb", buffering=0) as file:
            for sample in range(_SAMPLES):
                file.seek(sample * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
