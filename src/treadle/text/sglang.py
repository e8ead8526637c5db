"""SGLang's own request, for HTTP's /generate and for Python alike: what may be asked, and the items
that it asks for.

One request may hold a batch; fields that may differ between its members are one value for all or a
list with one each. Never tokenizes; `Item.place` says what must wait for the tokens.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from treadle.errors import InvalidRequest, RequestError
from treadle.text.intake import ANYWHERE, Place
from treadle.wire.sampling_params import SamplingParams
from treadle.wire.structured_outputs import StructuredOutputsParams

T = TypeVar("T")

MAX_NEW_TOKENS = 128

_CONSTRAINTS = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}
"""SGLang's names of constraints → ours."""

_ANY_OBJECT = "$$ANY$$"
"""SGLang's word for a schema that any object meets."""

_REFUSED_SAMPLING = (
    "stop_regex",
    "custom_params",
    "custom_logit_processor",
)

_REFUSED = (
    "input_embeds",
    "image_data",
    "audio_data",
    "video_data",
    "lora_path",
    "session_params",
    "session_id",
    "custom_logit_processor",
    "return_hidden_states",
    "return_routed_experts",
    "return_prompt_token_ids",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "routed_dp_rank",
    "data_parallel_rank",
    "require_reasoning",
    "max_thinking_tokens",
    "custom_labels",
)

NATIVE_NAMES = {
    "max_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
    "logprobs": "top_logprobs_num",
    "prompt_logprobs": "top_logprobs_num",
    "prompt_logprobs_start": "logprob_start_len",
    "logprob_token_ids": "token_ids_logprob",
    "request_id": "rid",
}
"""Our names of fields → SGLang's."""


class Sampling(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`sampling_params`. A field left open takes the model's own default, else SGLang's."""

    max_new_tokens: int | UnsetType | None = UNSET
    """128 if left open; null means as many as the window leaves, 0 only reads the prompt."""
    min_new_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    """Keep the stop string that ended the answer in its text."""
    logit_bias: dict[int, float] | None = None
    spaces_between_special_tokens: bool | None = None
    """Changes nothing: texts are those of the tokens' bytes, one after the other."""

    regex: str | None = None
    json_schema: str | dict[str, Any] | bool | None = None
    ebnf: str | None = None
    structural_tag: Any = None
    stop_regex: Any = None
    custom_params: Any = None
    custom_logit_processor: Any = None

    def fields(self) -> dict[str, Any]:
        """What was given, under SamplingParams' names."""
        _refuse(self, _REFUSED_SAMPLING, "sampling_params.")
        names = {
            **{name: name for name in SamplingParams.__struct_fields__},
            "min_tokens": "min_new_tokens",
            "seed": "sampling_seed",
            "include_stop_str_in_output": "no_stop_trim",
        }
        given = {ours: getattr(self, theirs, None) for ours, theirs in names.items()}
        found = {name: value for name, value in given.items() if value is not None}
        limit = MAX_NEW_TOKENS if self.max_new_tokens is UNSET else self.max_new_tokens
        return {**found, "max_tokens": limit, "structured_outputs": self._constraint()}

    def _constraint(self) -> StructuredOutputsParams | None:
        given = [name for name in _CONSTRAINTS if getattr(self, name) is not None]
        if not given:
            return None
        where = f"sampling_params.{given[-1]}"
        if len(given) > 1:
            both = " and ".join(given)
            raise InvalidRequest(f"{both} both say what the answer must be; give one", param=where)
        value = getattr(self, given[0])
        if given[0] == "json_schema" and value == _ANY_OBJECT:
            return StructuredOutputsParams(json_object=True, given_as=where)
        kind: dict[str, Any] = {_CONSTRAINTS[given[0]]: value}
        return StructuredOutputsParams(**kind, given_as=where)


class GenerateRequest(msgspec.Struct, kw_only=True):
    """The body of /generate. Unknown fields are ignored; those that would change the answer and are
    not implemented are refused when they hold anything."""

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: Sampling | list[Sampling] | None = None
    rid: str | list[str] | None = None
    """Names the request, or each member of a batch; to abort it by."""
    stream: bool | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    """Prompt token to score first; -1 scores none of the prompt."""
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int | list[int] | None] | None = None
    return_text_in_logprobs: bool | None = None
    cache_salt: str | list[str] | None = None
    extra_key: str | list[str] | None = None
    priority: int | list[int | None] | None = None
    """What it does is the server's setting."""
    routing_key: str | list[str] | None = None

    input_embeds: Any = None
    image_data: Any = None
    audio_data: Any = None
    video_data: Any = None
    lora_path: Any = None
    session_params: Any = None
    session_id: Any = None
    custom_logit_processor: Any = None
    return_hidden_states: Any = None
    return_routed_experts: Any = None
    return_prompt_token_ids: Any = None
    bootstrap_host: Any = None
    bootstrap_port: Any = None
    bootstrap_room: Any = None
    routed_dp_rank: Any = None
    data_parallel_rank: Any = None
    require_reasoning: Any = None
    max_thinking_tokens: Any = None
    custom_labels: Any = None

    @property
    def batched(self) -> bool:
        """Whether a list was asked, so that a list answers, be it of one."""
        if self.input_ids is not None:
            return any(isinstance(ids, list) for ids in self.input_ids)
        return isinstance(self.text, list)

    def items(self, defaults: Mapping[str, float], request_id: str) -> list[Item]:
        """The members of the batch, checked; `request_id` names the request if `rid` does not.

        `defaults` are the model's own, for sampling fields that are left open.
        """
        _refuse(self, _REFUSED)
        prompts = self._prompts()
        spread = _Spread(len(prompts), self.batched)
        samplings = spread("sampling_params", self.sampling_params, Sampling())
        with_logprobs = spread("return_logprob", self.return_logprob, False)
        starts = spread("logprob_start_len", self.logprob_start_len, -1)
        tops = spread("top_logprobs_num", self.top_logprobs_num, 0)
        salts = spread("cache_salt", self.cache_salt, "")
        keys = spread("extra_key", self.extra_key, "")
        asked = self._asked(spread)
        priorities = spread("priority", self.priority, None)
        routes = spread("routing_key", self.routing_key, "")
        ids = self._ids(len(prompts), request_id)
        items = []
        for at, prompt in enumerate(prompts):
            scores = {}
            if with_logprobs[at]:
                scores = {"logprobs": tops[at], "logprob_token_ids": asked[at]}
            with in_native_words():
                params = SamplingParams(**{**defaults, **samplings[at].fields(), **scores})
            start = starts[at] if with_logprobs[at] else -1
            place = Place(priorities[at], routes[at])
            items.append(Item(prompt, params, ids[at], _salt(salts[at], keys[at]), start, place))
        return items

    def _prompts(self) -> list[str | list[int]]:
        if (self.text is None) == (self.input_ids is None):
            raise InvalidRequest("exactly one of text and input_ids must be given", param="text")
        if self.text is not None:
            texts = [self.text] if isinstance(self.text, str) else self.text
            return _filled("text", list[str | list[int]](texts))
        assert self.input_ids is not None
        lists = [ids for ids in self.input_ids if isinstance(ids, list)]
        if lists and len(lists) < len(self.input_ids):
            raise InvalidRequest("input_ids mixes token ids and lists of them", param="input_ids")
        if lists:
            return list[str | list[int]](lists)
        return [_filled("input_ids", [one for one in self.input_ids if isinstance(one, int)])]

    def _asked(self, spread: _Spread) -> list[list[int] | None]:
        asked = self.token_ids_logprob
        if asked is None or all(isinstance(token, int) for token in asked):
            ids = [token for token in asked or () if isinstance(token, int)]
            return [ids or None] * spread.num_items
        if any(isinstance(token, int) for token in asked):
            raise InvalidRequest(
                "token_ids_logprob mixes token ids and lists of them", param="token_ids_logprob"
            )
        lists = [ids if isinstance(ids, list) else None for ids in asked]
        return spread("token_ids_logprob", lists, None)

    def _ids(self, num_items: int, request_id: str) -> list[str]:
        if isinstance(self.rid, list):
            if len(self.rid) != num_items or not self.batched:
                raise _wrong_length("rid", len(self.rid), num_items)
            if len(set(self.rid)) < num_items:
                raise InvalidRequest("rid names two members of the batch alike", param="rid")
            ids = self.rid
        else:
            name = request_id if self.rid is None else self.rid
            ids = [f"{name}_{at}" for at in range(num_items)] if self.batched else [name]
        if not all(ids):
            raise InvalidRequest("rid is empty", param="rid")
        return ids


@dataclasses.dataclass(frozen=True)
class Item:
    """One member of a batch: a prompt, n answers."""

    prompt: str | list[int]
    params: SamplingParams
    """Without what concerns the prompt's own tokens; see `placed`."""
    request_id: str
    cache_salt: str
    start: int
    """First prompt token to score; -1 for none."""
    place: Place = ANYWHERE

    @property
    def with_logprobs(self) -> bool:
        return self.params.logprobs is not None

    def placed(self, num_tokens: int) -> SamplingParams:
        """The parameters, now that the prompt's length is known."""
        if not -1 <= self.start <= num_tokens:
            raise InvalidRequest(
                f"logprob_start_len is {self.start}; it must be -1, for none of the prompt, or at "
                f"most the prompt's length, {num_tokens}",
                param="logprob_start_len",
            )
        if self.start in (-1, num_tokens):
            return self.params
        return msgspec.structs.replace(
            self.params, prompt_logprobs=self.params.logprobs, prompt_logprobs_start=self.start
        )


class in_native_words:  # noqa: N801 (read as a phrase)
    """Within it, errors about SamplingParams' fields name them as SGLang does."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, RequestError):
            pattern = r"\b(" + "|".join(NATIVE_NAMES) + r")\b"
            parts = re.split(r"('[^']*')", error.message)  # what is quoted is the client's own
            parts[::2] = [
                re.sub(pattern, lambda match: NATIVE_NAMES[match[0]], part) for part in parts[::2]
            ]
            error.message = "".join(parts)
            error.args = (error.message,)
            error.param = error.param and NATIVE_NAMES.get(error.param, error.param)


class _Spread:
    """One value for each member of a batch, from one for all or a list."""

    def __init__(self, num_items: int, batched: bool) -> None:
        self.num_items = num_items
        self._batched = batched

    def __call__(self, name: str, given: T | list[T] | None, default: T) -> list[T]:
        if given is None:
            return [default] * self.num_items
        if not isinstance(given, list):
            return [given] * self.num_items
        if len(given) != self.num_items or not self._batched:
            raise _wrong_length(name, len(given), self.num_items)
        return given


def _wrong_length(name: str, length: int, num_items: int) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is a list of {length}; it must be one value, or a list of {num_items} for a list "
        "of prompts",
        param=name,
    )


def _filled(name: str, given: list[T]) -> list[T]:
    if not given:
        raise InvalidRequest(f"{name} is an empty list", param=name)
    return given


def _salt(salt: str, key: str) -> str:
    """Both must match for two requests to share KV; no two pairs spell the same salt."""
    return f"{len(salt)}:{salt}{key}" if key else salt


def _refuse(
    given: msgspec.Struct,
    names: tuple[str, ...],
    where: str = "",
) -> None:
    """Raise InvalidRequest for a field that would be dropped without a word."""
    for name in names:
        if getattr(given, name) not in (None, False, "", [], {}):
            raise InvalidRequest(f"{where}{name} is not supported", param=f"{where}{name}")
