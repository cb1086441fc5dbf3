"""Fields of POST /generate beside `sampling_params`: prompts, names, sessions, and what is not there. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from actors.ingress.errors import Invalid
from actors.ingress.generation import MAX_CHOICES, read_session_use
from actors.ingress.logprobs import PROMPT_FIELD
from actors.ingress.openai_completion import ids_of
from actors.ingress.prompts import IdsPrompt, PromptSource, TextPrompt
from actors.ingress.responses.ids import check_own_session
from actors.ingress.routing import SessionUse
from actors.ingress.validate import Fields, check_identifier, check_text, wrong_type
from actors.messages import SamplingParams, TokenIds
from configs import RemoraConfig

MAX_TOP = 20
"""Most likely tokens that are told beside each chosen one."""
MAX_NAMED = 1024
"""Tokens of `token_ids_logprob`."""
REFUSED = (
    "input_embeds",
    "image_data",
    "video_data",
    "audio_data",
    "lora_path",
    "custom_logit_processor",
    "return_sampling_mask",
    "return_hidden_states",
    "return_routed_experts",
    "return_indexer_topk",
    "return_entropy",
    "return_prompt_token_ids",
    "return_flat_raw_top_logprobs",
    "positional_embed_overrides",
    "multi_item_delimiter_indices",
    "bootstrap_host",
    "bootstrap_room",
    "background",
    "max_thinking_tokens",
)
"""Known to SGLang and not built here: anything but nothing is refused."""
SESSION_FIELDS = {
    "session.id": "id",
    "session.parent": "rid",
    "session.replace": "replace",
    "session.drop_previous_output": "drop_previous_output",
    "session.offset": "offset",
}


def check_supported(fields: Fields) -> None:
    """Raises Invalid for known fields that cannot be honoured: saying so beats an answer that ignores them."""
    for name in REFUSED:
        value = fields.raw(name)
        if value and not (isinstance(value, list) and not any(value)):
            raise Invalid(name, f"`{name}` is not supported.", code="unsupported_value")


def read_prompts(fields: Fields, vocab_size: int, *, may_be_empty: bool) -> tuple[Sequence[PromptSource], bool]:
    """(prompts, whether the caller wrote a batch). `may_be_empty`: a turn may just go on (rule S4)."""
    text, ids = fields.raw("text"), fields.raw("input_ids")
    if text is not None and ids is not None:
        raise Invalid("input_ids", "Give either `text` or `input_ids`.")
    if text is not None:
        return _texts(text)
    if ids is not None:
        return _ids(ids, vocab_size, may_be_empty=may_be_empty)
    if may_be_empty:
        return (IdsPrompt((), "input_ids"),), False
    raise Invalid("text", "`text` or `input_ids` is missing.", code="missing_required_parameter")


def _texts(value: Any) -> tuple[Sequence[PromptSource], bool]:
    if isinstance(value, str):
        return (TextPrompt(check_text(value, "text"), "text"),), False
    items = _batch(value, "text", "a string or an array of strings")
    return tuple(TextPrompt(check_text(item, f"text[{n}]"), f"text[{n}]") for n, item in enumerate(items)), True


def _ids(value: Any, vocab_size: int, *, may_be_empty: bool) -> tuple[Sequence[PromptSource], bool]:
    name = "input_ids"
    if value == [] and may_be_empty:
        return (IdsPrompt((), name),), False
    if isinstance(value, list) and value and not isinstance(value[0], list):
        return (IdsPrompt(ids_of(value, name, vocab_size), name),), False
    prompts: list[PromptSource] = []
    for number, item in enumerate(_batch(value, name, "an array of token ids, or of such arrays")):
        path = f"{name}[{number}]"
        if not isinstance(item, list) or not item:
            raise wrong_type(path, "an array of token ids", item)
        prompts.append(IdsPrompt(ids_of(item, path, vocab_size), path))
    return tuple(prompts), True


def _batch(value: Any, name: str, wanted: str) -> list[Any]:
    if not isinstance(value, list):
        raise wrong_type(name, wanted, value)
    if not value:
        raise Invalid(name, f"`{name}` must not be empty.", code="empty_array")
    if len(value) > MAX_CHOICES:
        raise Invalid(name, f"`{name}` has {len(value)} prompts; at most {MAX_CHOICES} are taken at once.")
    return value


def read_names(fields: Fields, count: int) -> tuple[str, ...]:
    """`rid` of a batch: one name of it all, whose parts are `rid_0`, `rid_1`, …; or a list of the parts' names."""
    value = fields.raw("rid")
    if not isinstance(value, list):
        return ()
    names = tuple(check_identifier(item, f"rid[{number}]") for number, item in enumerate(value))
    if len(names) != count or len(set(names)) != count:
        raise Invalid("rid", f"`rid` must be one name, or {count} different ones: one for each prompt.")
    return names


def read_native_session(fields: Fields, config: RemoraConfig) -> tuple[SessionUse | None, Mapping[str, str]]:
    """(the turn's session, fields as the client knows them). `session_params` as SGLang has them, `session_id` for a
    session that is gone on with at its head, or `session` as on our other routes (rule P5)."""
    names = ("session_params", "session_id", "session")
    given = [name for name in names if fields.raw(name) not in (None, {})]
    if len(given) > 1:
        raise Invalid(given[1], f"`{given[0]}` and `{given[1]}` cannot both be set.")
    if given == ["session"]:
        return read_session_use(fields, config), {}
    if given == ["session_id"]:
        session_id = fields.identifier("session_id")
        assert session_id is not None
        check_own_session(session_id, "session_id")
        return SessionUse(session_id=session_id), {"session.id": "session_id"}
    params = fields.child("session_params")
    session_id = params.identifier("id") if params is not None else None
    if params is None or session_id is None:
        return None, {}
    check_own_session(session_id, params.at("id"))
    use = SessionUse(
        session_id=session_id,
        from_head=False,  # A turn that names no other is a new root; a streaming session knows one place only.
        parent=params.identifier("rid"),
        replace=params.flag("replace"),
        drop_previous_output=params.flag("drop_previous_output"),
        offset=params.integer("offset", least=-(2**31), most=2**31 - 1),
    )
    return use, {ours: params.at(theirs) for ours, theirs in SESSION_FIELDS.items()}


@dataclass(frozen=True, slots=True)
class Scoring:
    """Which log probabilities are told of a prompt and its reply. `top` None: none. `start`: where in the prompt they
    begin; None: the caller has left that open. `named`: tokens that are told beside each."""

    top: int | None = None
    start: int | None = None
    named: TokenIds = ()

    def told_by(self, sampling: SamplingParams) -> SamplingParams:
        """Where there is to be no reply, there is nothing but the prompt to tell of."""
        if self.top is None:
            return sampling
        start = (0 if sampling.max_tokens == 0 else -1) if self.start is None else self.start
        begin = start if start >= 0 else None
        return replace(sampling, logprobs=self.top, logprob_ids=self.named, prompt_logprobs_from=begin)


def read_scoring(fields: Fields, count: int, vocab_size: int) -> Sequence[Scoring]:
    """For each prompt. Raises Invalid."""
    wanted = same_for_all(fields, "return_logprob", count, "flag")
    top = same_for_all(fields, "top_logprobs_num", count, "integer") or 0
    starts = _of_each(fields, PROMPT_FIELD, count)
    named = _named(fields, count, vocab_size)
    if not 0 <= top <= MAX_TOP:
        raise Invalid("top_logprobs_num", f"`top_logprobs_num` must be 0 to {MAX_TOP}, not {top}.")
    for start in starts:
        if start is not None and start < -1:
            raise Invalid(PROMPT_FIELD, f"`{PROMPT_FIELD}` must be a position in the prompt, or -1.")
    told = [Scoring(top, start, ids) for start, ids in zip(starts, named, strict=True)]
    return told if wanted else [Scoring()] * count


def _of_each(fields: Fields, name: str, count: int) -> list[int | None]:
    """An integer for all prompts, or a list with one for each."""
    value = fields.raw(name)
    if not isinstance(value, list):
        return [fields.integer(name, least=-(2**31), most=2**31 - 1)] * count
    if len(value) != count:
        raise Invalid(name, f"`{name}` must be one value, or {count}: one for each prompt.")
    return [Fields({name: item}).integer(name, least=-(2**31), most=2**31 - 1) for item in value]


def _named(fields: Fields, count: int, vocab_size: int) -> list[TokenIds]:
    """`token_ids_logprob`: ids for all prompts, or a list of ids for each."""
    name = "token_ids_logprob"
    value = fields.raw(name)
    if value is not None and not isinstance(value, list):
        raise wrong_type(name, "an array of token ids, or of such arrays", value)
    lists = [value or []] * count
    if value and any(item is None or isinstance(item, list) for item in value):
        if len(value) != count:
            raise Invalid(name, f"`{name}` must be one array of token ids, or {count}: one for each prompt.")
        lists = [item if item is not None else [] for item in value]
    for item in lists:
        if not isinstance(item, list):
            raise wrong_type(name, "an array of token ids, or of such arrays", item)
        if len(item) > MAX_NAMED:
            raise Invalid(name, f"`{name}` names {len(item)} tokens; at most {MAX_NAMED} are told.")
    return [ids_of(item, name, vocab_size) for item in lists]


def same_for_all(fields: Fields, name: str, count: int, kind: str) -> Any:
    """A field that may be a list with one value for each prompt: here they have to be equal."""
    value = fields.raw(name)
    if not isinstance(value, list):
        return _checked(fields, name, kind)
    read = [_checked(Fields({name: item}), name, kind) for item in value]
    if len(read) != count or any(item != read[0] for item in read):
        raise Invalid(name, f"`{name}` must be one value, or {count} equal ones: one for each prompt.")
    return read[0]


def _checked(fields: Fields, name: str, kind: str) -> Any:
    if kind == "flag":
        return fields.flag(name)
    if kind == "integer":
        return fields.integer(name, least=-(2**31), most=2**31 - 1)
    return fields.text(name, max_bytes=1024)
