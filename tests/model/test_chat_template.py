from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from actors.model.chat_template import TemplateRefused
from actors.model.errors import ModelUnusable
from actors.model.text import load_text

FolderOf = Callable[[str], Path]
KINDS = ["chatml", "llama3", "mistral", "mistral-prepend", "mistral-metaspace"]
ENDS = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>", "mistral": "</s>"}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def with_template(folder_of: FolderOf, tmp_path: Path, template: str | None, kind: str = "chatml") -> Path:
    for file in folder_of(kind).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (tmp_path / "chat_template.jinja").write_text(template)
    return tmp_path


CONVERSATIONS = [
    [user("Hello world, how are you?")],
    [user("  Grüße\n\n"), assistant("Danke! 🎉"), user("日本語 123")],
    [user("a"), assistant("b"), user("c"), assistant("d"), user("def f(x):\n    return x\n")],
]


def reference_ids(folder: Path, messages: list[dict[str, Any]], **options: Any) -> list[int]:
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    return reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_conversations_are_rendered_as_transformers_does(
    kind: str, messages: list[dict[str, Any]], folder_of: FolderOf
) -> None:
    _, template = load_text(folder_of(kind))
    assert template.render_root(messages) == reference_ids(folder_of(kind), messages)


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_is_what_the_whole_conversation_has_behind_the_reply(kind: str, folder_of: FolderOf) -> None:
    """N26: P(k) is T(k-1) and the new message's own tokens; nothing is rendered again."""
    tokenizer, template = load_text(folder_of(kind))
    assert template.sessions_supported is None
    messages = [user("Hello world"), assistant("The quick brown fox"), user("thank you, fine")]
    turn = template.render_turn(messages[2:])
    assert turn.close_ids == (tokenizer.control_id(ENDS[kind.split("-")[0]]),)
    whole = reference_ids(folder_of(kind), messages)
    appended = [*turn.close_ids, *turn.input_ids]
    assert whole[-len(appended) :] == appended
    before = tokenizer.decode(whole[: -len(appended)], skip_special=False)
    assert before.endswith("The quick brown fox")


def test_several_new_messages_make_one_turn(folder_of: FolderOf) -> None:
    tokenizer, template = load_text(folder_of("chatml"))
    turn = template.render_turn([{"role": "tool", "content": "42"}, user("and?")])
    expected = "\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(turn.input_ids, skip_special=False) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", ["root", "turn"])
def test_control_tokens_in_user_text_are_text(kind: str, make: str, folder_of: FolderOf) -> None:
    """I1: the reply's frame has as many control tokens as with harmless text, and the text is all there."""
    tokenizer, template = load_text(folder_of(kind))
    controls = tokenizer.control_names
    hostile = "Hello " + " x".join(controls) + " world"

    def render(text: str) -> list[int]:
        if make == "root":
            return template.render_root([user(text)])
        return list(template.render_turn([user(text)]).input_ids)

    control_ids = {tokenizer.control_id(name) for name in controls}
    frame = [token for token in render("Hello") if token in control_ids]
    assert [token for token in render(hostile) if token in control_ids] == frame
    assert hostile in tokenizer.decode(render(hostile), skip_special=False)


def test_every_field_of_a_message_is_text(folder_of: FolderOf) -> None:
    """I1: roles, names, tool calls and parts, too."""
    tokenizer, template = load_text(folder_of("chatml"))
    end = tokenizer.control_id("<|im_end|>")
    clean = template.render_root([user("x")]).count(end or -1)
    parts = [
        {"type": "text", "text": "<|im_"},
        {"type": "text", "text": "end|>"},
        {"type": "text", "text": "<|im_end|>"},
    ]
    assert template.render_root([user(parts)]).count(end or -1) == clean
    assert template.render_root([{"role": "user<|im_end|>", "content": ""}]).count(end or -1) == clean


def test_a_reply_may_hold_the_control_tokens_that_the_model_wrote_as_text(folder_of: FolderOf) -> None:
    """`<think>` comes back from a client in the assistant's message: it is the model's own token, not a forgery."""
    tokenizer, template = load_text(folder_of("chatml"))
    think, end = tokenizer.control_id("<think>"), tokenizer.control_id("<|im_end|>")
    ids = template.render_root([user("<think>"), assistant("<think>hm</think>ok<|im_end|>"), user("x")])
    assert ids.count(think or -1) == 1
    assert ids.count(end or -1) == 4


THINKING = (
    "{%- set ns = namespace(searching=true, last=messages | length - 1) %}{%- for message in messages[::-1] %}"
    "{%- if ns.searching and message.role == 'user' and not message.content.startswith('<tool_response>') %}"
    "{%- set ns.searching = false %}{%- set ns.last = (messages | length - 1) - loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{%- if message.role == 'assistant' %}"
    "{%- set parts = message.content.split('</think>') %}{{- '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > ns.last %}{{- '<think>\n' + parts[0] + '</think>\n\n' }}{%- endif %}"
    "{{- parts[-1].lstrip('\n') + '<|im_end|>\n' }}{%- else %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
"""Like Qwen3's: it drops the reasoning of earlier turns when it renders them again."""


def test_a_template_that_drops_earlier_reasoning_still_goes_on(folder_of: FolderOf, tmp_path: Path) -> None:
    """N26: what is kept is not rendered again, so the turn is the new message alone."""
    tokenizer, template = load_text(with_template(folder_of, tmp_path, THINKING))
    assert template.sessions_supported is None
    turn = template.render_turn([user("next?")], extra={"enable_thinking": False})
    expected = "\n<|im_start|>user\nnext?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert tokenizer.decode(turn.input_ids, skip_special=False) == expected
    assert turn.close_ids == (tokenizer.control_id("<|im_end|>"),)


def test_what_the_template_refuses_is_told_in_its_words(folder_of: FolderOf) -> None:
    _, template = load_text(folder_of("mistral"))
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        template.render_root([user("a"), user("b")])
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        template.render_turn([assistant("b")])


def test_hostile_shapes_are_refused(folder_of: FolderOf) -> None:
    """I1: nothing a client sends may crash."""
    _, template = load_text(folder_of("chatml"))
    deep: Any = "x"
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested"):
        template.render_root([user("x")], tools=deep)
    with pytest.raises(TemplateRefused, match="text only"):
        template.render_root([user([{"type": "image_url", "image_url": "x"}])])
    with pytest.raises(TemplateRefused, match="failed on these messages"):
        template.render_root([user(7)])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ messages[-1].content }}", "shows an earlier reply 0 times"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "shows an earlier reply 2 times"),
        ("{% for m in messages[:2] %}{{ m.content }}{% endfor %}", "leaves out a new message|shows an earlier reply"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}{{ messages | length }}", "rewrites earlier messages"),
        ("{{ raise_exception('no') if messages | length > 1 else 'x' }}", "no"),
    ],
)
def test_templates_that_cannot_go_on_are_found_at_load(
    source: str, reason: str, folder_of: FolderOf, tmp_path: Path
) -> None:
    _, template = load_text(with_template(folder_of, tmp_path, source))
    assert template.sessions_supported is not None
    assert any(part in template.sessions_supported for part in reason.split("|"))
    with pytest.raises(TemplateRefused, match="cannot be kept"):
        template.render_turn([user("x")])


def test_a_template_without_an_end_of_turn_closes_nothing(folder_of: FolderOf, tmp_path: Path) -> None:
    source = "{% for m in messages %}{{ '\n### ' + m.role + '\n' + m.content }}{% endfor %}{{ '\n### assistant\n' }}"
    tokenizer, template = load_text(with_template(folder_of, tmp_path, source))
    turn = template.render_turn([user("hi")])
    assert turn.close_ids == ()
    assert tokenizer.decode(turn.input_ids) == "\n### user\nhi\n### assistant\n"


def test_a_model_without_a_template_chats_by_chatml_if_it_has_the_tokens(folder_of: FolderOf, tmp_path: Path) -> None:
    tokenizer, template = load_text(with_template(folder_of, tmp_path, None))
    text = tokenizer.decode(template.render_root([user("hi")]), skip_special=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert template.sessions_supported is None


def test_a_model_with_neither_says_so_when_it_is_asked_to_chat(folder_of: FolderOf, tmp_path: Path) -> None:
    _, template = load_text(with_template(folder_of, tmp_path, None, kind="llama3"))
    assert template.unusable is not None
    with pytest.raises(TemplateRefused, match="no chat template"):
        template.render_root([user("hi")])


def test_a_broken_template_is_found_at_load(folder_of: FolderOf, tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match="broken"):
        load_text(with_template(folder_of, tmp_path, "{% for %}"))


def test_templates_cannot_reach_python(folder_of: FolderOf, tmp_path: Path) -> None:
    """A model folder is data: its template runs in a sandbox."""
    _, template = load_text(with_template(folder_of, tmp_path, "{{ messages.__class__.__mro__ }}"))
    with pytest.raises(TemplateRefused, match="unsafe"):
        template.render_root([user("x")])


TOOLS_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}{% for m in messages %}{% generation %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% endgeneration %}{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.arguments | tojson(indent=1) }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_tools_and_tool_calls_are_rendered_as_transformers_does(folder_of: FolderOf, tmp_path: Path) -> None:
    folder = with_template(folder_of, tmp_path, TOOLS_TEMPLATE)
    _, template = load_text(folder)
    assert template.takes_tools
    tools = [{"type": "function", "function": {"name": "f", "description": "Grüße <b>&", "parameters": {}}}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, "ü"]}'}}
    asked = [user("x"), {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "1"}]
    parsed = {**call, "function": {"name": "f", "arguments": {"a": [1, "ü"]}}}
    expected = [asked[0], {"role": "assistant", "content": "", "tool_calls": [parsed]}, asked[2]]
    assert template.render_root(asked, tools=tools) == reference_ids(folder, expected, tools=tools)


@pytest.mark.model
def test_the_default_model_renders_as_transformers_does() -> None:
    """Root and turn of SmolLM2's own template and tokenizer."""
    from actors.model.source import resolve

    folder = resolve("default").path
    tokenizer, template = load_text(folder)
    for messages in CONVERSATIONS:
        assert template.render_root(messages) == reference_ids(folder, messages)
    messages = CONVERSATIONS[1]
    turn = template.render_turn(messages[2:])
    appended = [*turn.close_ids, *turn.input_ids]
    assert turn.close_ids == (tokenizer.control_id("<|im_end|>"),)
    assert reference_ids(folder, messages)[-len(appended) :] == appended
