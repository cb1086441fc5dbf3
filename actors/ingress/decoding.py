"""How a reply's tokens are told as text, where a caller wants it otherwise than usual. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from actors.ingress.text import Decoder, TextModel
from actors.model.detokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class Decoding:
    """`controls`: control tokens are told as they are spelled. `keeps_stop`: so is the stop string that ended it.
    `marks`: control tokens that whoever reads the reply looks for, and how they are spelled."""

    controls: bool = False
    keeps_stop: bool = False
    marks: Mapping[int, str] = field(default_factory=dict)


USUAL = Decoding()


def decoder_for(text: TextModel, stop: Sequence[str], decoding: Decoding) -> Decoder:
    """The decoder of one reply that ends at one of `stop`."""
    stops = () if decoding.keeps_stop else stop
    decoder = _SpelledOut(text, stops) if decoding.controls else text.decoder(stops, decoding.marks)
    return _Untrimmed(decoder) if decoding.keeps_stop else decoder


class _Untrimmed:
    """Nothing is cut off, whatever the reply ended at."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def push(self, ids: Sequence[int]) -> str:
        return self._decoder.push(ids)

    def finish(self, matched: str | None) -> str:
        return self._decoder.finish(None)


class _SpelledOut(Detokenizer):
    """Tells control tokens, too. Stop strings are looked for in the text without them: one that is interrupted by a
    control token ends the reply, but is not in its text as a whole, so that there is nothing to cut."""

    def __init__(self, text: TextModel, stop: Sequence[str]) -> None:
        super().__init__(_Spelling(text.token_bytes, text.vocab_size), stop)

    def finish(self, matched: str | None = None) -> str:
        there = matched is not None and matched.encode("utf-8", "surrogatepass") in self._pending
        return super().finish(matched if there else None)


class _Spelling(Sequence[bytes]):
    """The bytes of every token, without a table of them."""

    def __init__(self, token_bytes: Callable[[int], bytes], size: int) -> None:
        self._token_bytes = token_bytes
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, token: int) -> bytes:  # type: ignore[override]
        return self._token_bytes(token)
