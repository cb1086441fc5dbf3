"""The `TextModel` of a configuration: from the same folder that the workers' weights come from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from actors.ingress.text import TextModel
from actors.ingress.toy_text import TOY_MAX_CONTEXT, toy_text
from actors.model.detokenizer import Detokenizer
from actors.model.errors import ModelUnusable
from actors.model.source import resolve, served_name
from actors.model.text import load_text
from actors.model.tokenizer import Tokenizer
from actors.replies.formats import ReplyFormat, find_reasoning, find_tools
from configs import ModelConfig, RemoraConfig


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
        decoder=lambda stop, marks=None: Detokenizer(vocab_bytes, stop, marks),
        vocab_size=tokenizer.vocab_size,
        max_context=_max_context(folder.path, config.model.max_context),
        max_token_bytes=max(map(len, vocab_bytes)),
        encode=tokenizer.encode_prompt,
        token_bytes=tokenizer.spelled,
        replies=reply_format(config.model, tokenizer, takes_tools=template.takes_tools),
    )


def reply_format(model: ModelConfig, tokenizer: Tokenizer, *, takes_tools: bool) -> ReplyFormat:
    """How the model writes tool calls and reasoning: by the configuration, or by its templates."""
    templates = "\n".join(tokenizer.templates.values())
    found = ReplyFormat(
        tools=find_tools(model.tool_format, templates),
        reasoning=find_reasoning(model.reasoning, templates),
        takes_tools=takes_tools,
    )
    vocab_bytes = tokenizer.vocab_bytes()
    ids = {marker: tokenizer.control_id(marker) for marker in found.markers}
    silent = {marker: token for marker, token in ids.items() if token is not None and not vocab_bytes[token]}
    return replace(found, token_ids=silent)


def _max_context(folder: Path, configured: int) -> int:
    try:
        spec = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        most = int(spec["max_position_embeddings"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelUnusable(f"{folder}: config.json does not say `max_position_embeddings`") from error
    return min(configured, most) if configured else most
