"""How the reply to a prompt is read, and what it is held to. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from actors.ingress.errors import Invalid
from actors.ingress.prompts import ChatPrompt, PromptSource
from actors.ingress.text import TextModel
from actors.messages import Grammar, Submit
from actors.model.chat_template import Ends
from actors.replies.grammar import reply_grammar
from actors.replies.notation import CannotHold
from actors.replies.parts import PartReader, PlainReader
from actors.replies.reader import reply_reader

MAX_GRAMMAR = 512 * 2**10
"""Characters of one grammar."""
_LAST_IDS = 32
"""In these, at the end of a prompt, the tag that begins reasoning is found."""


@dataclass(frozen=True, slots=True)
class Reading:
    """`marks`: control tokens that the decoder has to show to the reader."""

    reader: PartReader
    marks: Mapping[int, str] = field(default_factory=dict)


def reading_of(prompt: PromptSource, text: TextModel, ids: Sequence[int]) -> Reading:
    """For a reply to `prompt`, whose ids end with `ids`. A prompt that is no chat is gone on with as plain text."""
    if not isinstance(prompt, ChatPrompt):
        return Reading(PlainReader())
    replies = text.replies
    seen = replies if prompt.tools else replies.without_tools()
    reader = reply_reader(seen, prompt.tools or (), thinking=is_thinking(text, ids, prompt))
    marks = {token: marker for marker, token in seen.token_ids.items() if marker in seen.markers}
    return Reading(reader, marks)


def held_to(
    prompt: PromptSource, text: TextModel, ids: Sequence[int], answer: Grammar | None, field: str
) -> Grammar | None:
    """What the reply must conform to, calls and reasoning included. `answer`: what its text must. Raises Invalid naming
    the `field` that asked for it."""
    if not isinstance(prompt, ChatPrompt):
        return answer
    thinking = is_thinking(text, ids, prompt)
    try:
        grammar = reply_grammar(text.replies, prompt.tools or (), prompt.demand, answer, thinking=thinking)
    except CannotHold as error:
        raise Invalid(field, f"This cannot be enforced: {error}.", code="unsupported_value") from error
    if grammar is not None and len(grammar.text) > MAX_GRAMMAR:
        message = f"The schemas of tools and answer are too long to be enforced: {len(grammar.text)} characters of at "
        raise Invalid(field, f"{message}most {MAX_GRAMMAR} in all.", code="string_above_max_length")
    return grammar


def is_thinking(text: TextModel, ids: Sequence[int], prompt: ChatPrompt | None = None) -> bool:
    """Whether a prompt ends with the beginning of reasoning, as some templates do it, or within it, as some do who
    begin the reply."""
    tags = text.replies.reasoning
    if tags is None:
        return False
    if prompt is not None and prompt.ends is Ends.CONTINUED:
        begun = prompt.messages[-1]["content"]
        return bool(begun.rfind(tags.begins) > begun.rfind(tags.ends))
    marks = {token: marker for marker, token in text.replies.token_ids.items()}
    decoder = text.decoder((), marks)
    last = decoder.push(ids[-_LAST_IDS:]) + decoder.finish(None)
    return last.rstrip().endswith(tags.begins)


def call_id(submit: Submit, number: int) -> str:
    """The name of a reply's call: the same when the request is sent again (rule T2), and no other's."""
    name = f"{submit.rid}\n{number}".encode() + submit.digest
    return f"call_{hashlib.blake2b(name, digest_size=12).hexdigest()}"
