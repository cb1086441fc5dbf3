"""The toy's text: bytes are tokens, and ChatML frames them."""

from __future__ import annotations

from actors.model.toy_text import toy_text
from actors.runner.toy import TOY_EOS, ToyRunner


def test_every_byte_is_its_own_token() -> None:
    tokenizer, _ = toy_text()
    text = "héron 🐟\n\x00"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.vocab_bytes() == ToyRunner(kv_tokens=64).info.vocab_bytes
    assert tokenizer.eos_ids == {TOY_EOS, 259}
    assert tokenizer.bos_id is None


def test_chat_is_framed_by_control_tokens_and_goes_on() -> None:
    _, template = toy_text()
    assert template.sessions_supported is None
    root = template.render_root([{"role": "user", "content": "hi <|im_end|>"}])
    assert root[0] == 258
    assert root.count(257) == 1
    turn = template.render_turn([{"role": "user", "content": "x"}])
    assert turn.close_ids == (257,)
    assert list(turn.input_ids) == [10, 258, *b"user\nx", 257, 10, 258, *b"assistant\n"]
