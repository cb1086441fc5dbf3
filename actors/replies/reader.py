"""The reader for a reply: by the model's format, the tools of the request, and how its prompt ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from actors.replies.formats import ReplyFormat, ToolFormat
from actors.replies.hermes import HermesReader
from actors.replies.llama import LlamaReader
from actors.replies.mistral import MistralReader
from actors.replies.parts import PartReader, PlainReader
from actors.replies.reasoning import ReasoningReader
from actors.replies.xml import XmlReader


def reply_reader(format: ReplyFormat, tools: Sequence[Mapping[str, Any]], *, thinking: bool) -> PartReader:
    """`tools`: as templates take them; none: the reply calls none. `thinking`: the prompt ends within reasoning."""
    answer = call_reader(format.tools, tools) if format.tools and tools else PlainReader()
    return answer if format.reasoning is None else ReasoningReader(format.reasoning, answer, begun=thinking)


def call_reader(kind: ToolFormat, tools: Sequence[Mapping[str, Any]]) -> PartReader:
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
    match kind:
        case ToolFormat.HERMES:
            return HermesReader()
        case ToolFormat.LLAMA3:
            return LlamaReader(schemas)
        case ToolFormat.MISTRAL | ToolFormat.MISTRAL_ARGS:
            return MistralReader()
        case ToolFormat.QWEN_XML:
            return XmlReader(schemas)
