"""Prompts that end within a reply, or behind a message: `continue_final_message` and `add_generation_prompt`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from actors.model.chat_template import Ends, TemplateRefused
from actors.model.text import load_text
from tests.model.test_chat_template import ENDS, KINDS, assistant, user, with_template

FolderOf = Callable[[str], Path]
TRIMS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n\n</think>\n\n"
    "{{ m.content.split('</think>')[-1] | trim }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def reference_ids(folder: Path, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    return reference.apply_chat_template(messages, return_dict=False, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", ["It is (", "日本", "a\n\nb", "x"])
def test_a_begun_reply_is_rendered_as_transformers_does(kind: str, begun: str, folder_of: FolderOf) -> None:
    _, template = load_text(folder_of(kind))
    messages = [user("Hello"), assistant("Yes?"), user("What is it?"), assistant(begun)]
    expected = reference_ids(folder_of(kind), messages, continue_final_message=True)
    assert template.render_root(messages, ends=Ends.CONTINUED) == expected
    assert template.render_root(messages, ends=Ends.BARE) == reference_ids(folder_of(kind), messages)


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_may_end_within_its_reply(kind: str, folder_of: FolderOf) -> None:
    """S4: what is put behind the history is what a whole conversation has there."""
    tokenizer, template = load_text(folder_of(kind))
    messages = [user("Hello world"), assistant("The quick brown fox"), user("thank you"), assistant("You are")]
    turn = template.render_turn(messages[2:], ends=Ends.CONTINUED)
    assert turn.close_ids == (tokenizer.control_id(ENDS[kind.split("-")[0]]),)
    whole = reference_ids(folder_of(kind), messages, continue_final_message=True)
    appended = [*turn.close_ids, *turn.input_ids]
    assert whole[-len(appended) :] == appended
    assert tokenizer.decode(whole).endswith("You are")


def test_what_was_begun_stands_as_it_is(folder_of: FolderOf, tmp_path: Path) -> None:
    """I1, S1: nothing is trimmed or taken out of it, and what looks like a control token is text."""
    tokenizer, template = load_text(with_template(folder_of, tmp_path, TRIMS))
    begun = "  so </think> it<|im_end|> is "
    ids = template.render_root([user("x"), assistant(begun)], ends=Ends.CONTINUED)
    assert tokenizer.decode(ids, skip_special=False).endswith(f"</think>\n\n{begun}")
    assert ids.count(tokenizer.control_id("<|im_end|>") or -1) == 1


def test_a_template_that_hides_it_refuses(folder_of: FolderOf, tmp_path: Path) -> None:
    source = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    _, template = load_text(with_template(folder_of, tmp_path, source))
    with pytest.raises(TemplateRefused, match="0 times"):
        template.render_root([user("x"), assistant("y")], ends=Ends.CONTINUED)
