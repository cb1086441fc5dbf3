"""The `TextModel` of a configuration: from the same folder that the workers' weights come from."""

from __future__ import annotations

import json
from pathlib import Path

from actors.ingress.text import TextModel
from actors.ingress.toy_text import TOY_MAX_CONTEXT, toy_text
from actors.model.detokenizer import Detokenizer
from actors.model.errors import ModelUnusable
from actors.model.source import resolve, served_name
from actors.model.text import load_text
from configs import RemoraConfig


def load_text_model(config: RemoraConfig) -> TextModel:
    """Raises ModelNotFound or ModelUnusable. Blocks: the model may have to be downloaded first."""
    if config.workers.runner == "toy":
        return toy_text(config.model.served_name or "toy", config.model.max_context or TOY_MAX_CONTEXT)
    folder = resolve(config.model.id, config.model.cache_dir, progress=False)
    tokenizer, template = load_text(folder)
    vocab_bytes = tokenizer.vocab_bytes()
    return TextModel(
        name=config.model.served_name or served_name(config.model.id),
        template=template,
        decoder=lambda stop: Detokenizer(vocab_bytes, stop),
        vocab_size=tokenizer.vocab_size,
        max_context=_max_context(folder.path, config.model.max_context),
        max_token_bytes=max(map(len, vocab_bytes)),
        encode=tokenizer.encode_prompt,
        token_bytes=tokenizer.spelled,
    )


def _max_context(folder: Path, configured: int) -> int:
    try:
        spec = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        most = int(spec["max_position_embeddings"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelUnusable(f"{folder}: config.json does not say `max_position_embeddings`") from error
    return min(configured, most) if configured else most
