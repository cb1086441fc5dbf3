"""Everything a front end needs of a model: its tokenizer and its chat template."""

from __future__ import annotations

import os

from actors.model.chat_template import ChatTemplate
from actors.model.tokenizer import Tokenizer


def load_text(folder: str | os.PathLike[str]) -> tuple[Tokenizer, ChatTemplate]:
    """Load both from a model folder (a path, or what `resolve` returned). Raises ModelUnusable."""
    tokenizer = Tokenizer.load(folder)
    return tokenizer, ChatTemplate(tokenizer)
