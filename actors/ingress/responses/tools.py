"""`tools` and `tool_choice` as the Responses API has them → what is common to all APIs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from actors.ingress.errors import Invalid
from actors.ingress.prompts import ChatPrompt
from actors.ingress.text import TextModel
from actors.ingress.tools import MAX_TOOLS, check_names, demand_of, read_function, word_of_choice
from actors.ingress.validate import Fields, wrong_type
from actors.replies.demand import ANY, Demand
from actors.replies.formats import ReplyFormat


def read_tools(fields: Fields, replies: ReplyFormat) -> tuple[list[dict[str, Any]] | None, Demand]:
    """(tools as templates take them, what is demanded of calls). None: the reply is to call none. Raises Invalid naming
    the field; tools that run on servers are refused by their names."""
    tools = [_tool(item, f"tools[{number}]") for number, item in enumerate(fields.items("tools", most=MAX_TOOLS) or ())]
    check_names(tools, "name")
    parallel = fields.flag("parallel_tool_calls", True)
    choice, named = _choice(fields, [tool["function"]["name"] for tool in tools])
    if not tools or choice == "none":
        return None, ANY
    demand = Demand(required=choice == "required", named=named, parallel=parallel, field="parallel_tool_calls")
    return tools, demand_of(tools, demand, replies)


def check_shown(prompt: ChatPrompt, text: TextModel, before: Sequence[Any]) -> None:
    """For a prompt that goes on with a context in which the tools `before` were told: others have to be told in it.
    Raises Invalid where the template tells tools at the beginning only."""
    if not prompt.tools or prompt.tools == list(before):
        return
    template, messages = text.template, prompt.messages
    with_tools = template.render_turn(messages, prompt.tools, prompt.extra).input_ids
    if tuple(with_tools) == tuple(template.render_turn(messages, None, prompt.extra).input_ids):
        message = (
            "`tools` other than those of the responses before cannot be told to this model in the middle of a "
            "conversation: its chat template tells tools at the beginning."
        )
        raise Invalid("tools", message, code="unsupported_value")


def _tool(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    fields = Fields(value, path)
    kind, at = fields.text("type", max_bytes=256), fields.at("type")
    if kind is None:
        raise Invalid(at, f"`{at}` is missing.", code="missing_required_parameter")
    if kind != "function":
        text = f"`{at}` is {kind[:64]!r}: no tools are run by this server; give functions."
        raise Invalid(at, text, code="unsupported_value")
    return read_function(fields)


def _choice(fields: Fields, names: list[str]) -> tuple[str, str]:
    """(`none`, `auto` or `required`; the tool that has to be called)."""
    value, at = fields.raw("tool_choice"), "tool_choice"
    if value is None or isinstance(value, str):
        return word_of_choice(value, names), ""
    choice = fields.child("tool_choice")
    assert choice is not None
    if choice.text("type", max_bytes=256) != "function":
        at = choice.at("type")
        raise Invalid(at, f"`{at}` must be 'function': there are no other tools here.", code="unsupported_value")
    name, at = choice.text("name", max_bytes=1024), choice.at("name")
    if name not in names:
        raise Invalid(at, f"`{at}` is not the name of one of the `tools`.")
    return "auto", str(name)
