from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from actors.model.detokenizer import Detokenizer
from actors.model.errors import ModelUnusable
from actors.model.tokenizer import Tokenizer

KINDS = ["chatml", "llama3", "mistral", "mistral-prepend", "mistral-metaspace"]
FolderOf = Callable[[str], Path]

anything = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


def same_text(decoded: str, text: str) -> bool:
    """SentencePiece spells a blank `▁`, and may put one in front of a text."""
    decoded, text = decoded.replace("▁", " "), text.replace("▁", " ")
    return decoded in (text, f" {text}")


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest, folder_of: FolderOf) -> Tokenizer:
    return Tokenizer.load(folder_of(request.param))


@anything
@given(text=st.text(max_size=40))
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    """I2: decoding what was encoded gives the text, whole or token by token."""
    ids = tokenizer.encode(text)
    decoded = tokenizer.decode(ids)
    assert same_text(decoded, text)
    detokenizer = Detokenizer(tokenizer.vocab_bytes())
    assert "".join([detokenizer.push([token]) for token in ids] + [detokenizer.finish()]) == decoded


@anything
@given(data=st.data())
def test_any_ids_are_decoded_as_the_library_does(folder_of: FolderOf, data: st.DataObject) -> None:
    """I2: also ids that make no valid text. (SentencePiece differs: the library drops a leading blank.)"""
    folder = folder_of(data.draw(st.sampled_from(["chatml", "llama3", "mistral"])))
    tokenizer, library = Tokenizer.load(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
    for skip in (True, False):
        assert tokenizer.decode(ids, skip_special=skip) == library.decode(ids, skip_special_tokens=skip)


@anything
@given(data=st.data())
def test_user_text_never_makes_control_tokens(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """I1: special tokens in user text are text, whatever surrounds them."""
    controls = tokenizer.control_names
    pieces = st.one_of(st.sampled_from(controls), st.text(max_size=4), st.sampled_from(["<|", "|>", "[", " "]))
    text = "".join(data.draw(st.lists(pieces, max_size=8)))
    ids = tokenizer.encode(text)
    assert not {tokenizer.control_id(name) for name in controls} & set(ids)
    assert same_text(tokenizer.decode(ids), text)


@anything
@given(data=st.data())
def test_ordinary_text_is_encoded_as_if_nothing_had_been_taken_out(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Without control tokens in a text, the guarded encoder and the tokenizer as it came agree."""
    text = data.draw(st.text(st.characters(codec="utf-8"), max_size=40))
    # Hypothesis also draws strings that it finds in our source, and "<think>" is one of them.
    assume(not any(name in text for name in tokenizer.control_names))
    assert tokenizer.encode(text) == tokenizer.encode(text, special=True)


@anything
@given(data=st.data())
def test_templates_are_encoded_the_same_with_and_without_literal_spans(
    tokenizer: Tokenizer, data: st.DataObject
) -> None:
    """The careful path must differ from the library's in nothing but the literal spans."""
    pieces = st.one_of(st.sampled_from(tokenizer.control_names), st.text("ab c\nü", min_size=1, max_size=6))
    rendered = "".join(data.draw(st.lists(pieces, min_size=1, max_size=8)))
    assert tokenizer.encode_template(rendered, [(0, 0)]) == tokenizer.encode_template(rendered)


def test_control_tokens_inside_literal_spans_are_text(folder_of: FolderOf) -> None:
    tokenizer = Tokenizer.load(folder_of("chatml"))
    end = tokenizer.control_id("<|im_end|>")
    ids = tokenizer.encode_template("hi <|im_end|> there<|im_end|>", [(3, 13)])
    assert ids == [*tokenizer.encode("hi <|im_end|> there"), end]


def test_control_tokens_that_are_not_special_are_not_made_by_user_text_but_shown(folder_of: FolderOf) -> None:
    """I1: `<tool_call>` in user text is text; written by the model, it is part of its text."""
    tokenizer = Tokenizer.load(folder_of("chatml"))
    tool_call = tokenizer.control_id("<tool_call>")
    assert tool_call is not None
    assert tool_call not in tokenizer.encode("<tool_call>")
    assert tokenizer.encode("<tool_call>", special=True) == [tool_call]
    assert tokenizer.vocab_bytes()[tool_call] == b"<tool_call>"


def test_special_tokens_have_no_text_unless_asked_for(folder_of: FolderOf) -> None:
    tokenizer = Tokenizer.load(folder_of("chatml"))
    ids = [*tokenizer.encode("hi"), tokenizer.control_id("<|im_end|>") or 0]
    assert tokenizer.decode(ids) == "hi"
    assert tokenizer.decode(ids, skip_special=False) == "hi<|im_end|>"


def test_every_end_of_turn_is_known(folder_of: FolderOf) -> None:
    """Also those that the configs forget to list."""
    tokenizer = Tokenizer.load(folder_of("llama3"))
    assert tokenizer.eos_ids == {tokenizer.control_id("<|eot_id|>"), tokenizer.control_id("<|end_of_text|>")}


def test_eos_ids_come_from_every_config(folder_of: FolderOf, tmp_path: Path) -> None:
    for file in folder_of("chatml").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 11, "vocab_size": 500}')
    tokenizer = Tokenizer.load(tmp_path)
    assert {7, 9, 11} < tokenizer.eos_ids
    assert tokenizer.vocab_size == 500
    assert tokenizer.vocab_bytes()[499] == b""


def test_bos_is_only_what_begins_a_text(folder_of: FolderOf) -> None:
    """S4 strips a leading BOS of an appended input: ChatML's message opener must not count as one."""
    assert Tokenizer.load(folder_of("chatml")).bos_id is None
    mistral = Tokenizer.load(folder_of("mistral"))
    assert mistral.bos_id == mistral.control_id("<s>")
    assert mistral.encode_prompt("hi") == [mistral.bos_id, *mistral.encode("hi")]


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
    """I1: a half of a character is not text; two halves that belong together are."""
    assert "�" in tokenizer.decode(tokenizer.encode("a\ud83d"))
    assert tokenizer.decode(tokenizer.encode("\ud83c\udf89")).strip() == "🎉"


def test_many_threads_may_use_one_tokenizer(tokenizer: Tokenizer) -> None:
    texts = [f"thread {n} <|im_end|> 🎉 [INST]" for n in range(200)]
    expected = [tokenizer.encode(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, texts)) == expected


def test_a_merge_that_would_spell_a_control_token_is_left_out(folder_of: FolderOf, tmp_path: Path) -> None:
    """I1: some vocabularies can build `</s>` from `</` and `s>`."""
    source = folder_of("mistral-prepend")
    spec = json.loads((source / "tokenizer.json").read_text())
    vocab = spec["model"]["vocab"]
    for piece in ("<", "/", ">", "</", "s>"):
        vocab.setdefault(piece, len(vocab))
    spec["model"]["merges"] += [["<", "/"], ["s", ">"], ["</", "s>"]]
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.control_id("</s>") not in tokenizer.encode("a</s>b")
    assert tokenizer.decode(tokenizer.encode("a</s>b")) == " a</s>b"


def test_missing_broken_and_unsupported_tokenizers_say_so(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{broken")
    with pytest.raises(ModelUnusable, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram", "vocab": []}}')
    with pytest.raises(ModelUnusable, match="only BPE"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}')
    with pytest.raises(ModelUnusable, match="not understood"):
        Tokenizer.load(tmp_path)
