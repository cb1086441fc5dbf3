"""Which way a model writes tool calls and reasoning: told by its chat template, or by the configuration. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from actors.replies import hermes, llama, mistral, xml
from actors.replies.reasoning import Tags


class ToolFormat(str, Enum):
    """`mistral`: a list of objects. `mistral_args`: a name and its arguments, call by call (Mistral Small 3.2 and
    later)."""

    HERMES = "hermes"
    LLAMA3 = "llama3"
    MISTRAL = "mistral"
    MISTRAL_ARGS = "mistral_args"
    QWEN_XML = "qwen_xml"


MARKERS: dict[ToolFormat, tuple[str, ...]] = {
    ToolFormat.HERMES: (hermes.BEGINS, hermes.ENDS),
    ToolFormat.LLAMA3: (llama.PYTHON_TAG,),
    ToolFormat.MISTRAL: (mistral.BEGINS, mistral.CALL_ID, mistral.ARGS),
    ToolFormat.MISTRAL_ARGS: (mistral.BEGINS, mistral.CALL_ID, mistral.ARGS),
    ToolFormat.QWEN_XML: (xml.BEGINS, xml.ENDS),
}
"""What each format's reader looks for."""

REASONING: dict[str, Tags] = {
    "think": Tags("<think>", "</think>"),
    "think_brackets": Tags("[THINK]", "[/THINK]"),
}

_SIGNS: tuple[tuple[str, ToolFormat], ...] = (
    ("<function=", ToolFormat.QWEN_XML),
    ("<tool_call>", ToolFormat.HERMES),
    ("[ARGS]", ToolFormat.MISTRAL_ARGS),
    ("[TOOL_CALLS]", ToolFormat.MISTRAL),
    ("<|python_tag|>", ToolFormat.LLAMA3),
    ('"parameters": dictionary of argument name and its value', ToolFormat.LLAMA3),
)


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """`takes_tools`: the template has a place for tools. `token_ids`: of those markers that are control tokens, which
    have no text of their own. Without `tools` no reply calls any, without `reasoning` none holds any."""

    tools: ToolFormat | None = None
    reasoning: Tags | None = None
    takes_tools: bool = False
    token_ids: Mapping[str, int] = field(default_factory=dict)

    @property
    def markers(self) -> tuple[str, ...]:
        """All that its readers look for."""
        tags = (self.reasoning.begins, self.reasoning.ends) if self.reasoning else ()
        return (*tags, *(MARKERS[self.tools] if self.tools else ()))

    def without_tools(self) -> ReplyFormat:
        return replace(self, tools=None)


PLAIN = ReplyFormat()


def find_tools(setting: str, template: str) -> ToolFormat | None:
    """`setting`: a format's name, `off`, or `auto`: the one whose words are in the template."""
    if setting == "off":
        return None
    if setting != "auto":
        return ToolFormat(setting)
    return next((kind for sign, kind in _SIGNS if sign in template), None)


def find_reasoning(setting: str, template: str) -> Tags | None:
    """The same for `REASONING`."""
    if setting == "off":
        return None
    if setting != "auto":
        return REASONING[setting]
    return next((tags for tags in REASONING.values() if tags.ends in template), None)
