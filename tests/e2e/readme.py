"""The curl examples of a document, as commands that can be run: what is told there is what works."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

SERVED_AT = "http://127.0.0.1:8000"
"""Where the document says that the server is."""
_FENCE = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_STATUS = re.compile(r"#\s*(\d{3})\b")
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Example:
    """`status`: the answer's, where a comment behind the command tells one (`# 404: …`); else any 2xx will do."""

    words: tuple[str, ...]
    status: int | None

    def run(self, url: str) -> None:
        """Raises AssertionError with the answer, when its status is another."""
        words = [word.replace(SERVED_AT, url) for word in self.words]
        done = subprocess.run(
            [*words, "--silent", "--show-error", "--write-out", "\n%{http_code}"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        answer, _, status = done.stdout.rpartition("\n")
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
        right = status.startswith("2") if self.status is None else status == str(self.status)
        assert right, f"{shlex.join(words)}: {status} {answer}"


def examples(document: str) -> list[Example]:
    """The commands that begin with `curl`, in their order."""
    found = [example for block in _FENCE.findall(document) for example in _commands(block)]
    return [example for example in found if example.words and example.words[0] == "curl"]


def _commands(block: str) -> Iterator[Example]:
    text = ""
    for line in block.splitlines():
        text += f"{line}\n"
        if line.endswith("\\"):
            continue
        try:
            words = shlex.split(text, comments=True)
        except ValueError:  # A quotation that goes on on the next line.
            continue
        told = _STATUS.search(line)
        yield Example(tuple(word for word in words if word != "\n"), int(told[1]) if told else None)
        text = ""
    assert not text.strip(), f"a quotation is open: {text}"
