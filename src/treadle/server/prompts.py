"""From a decoded request to prompts: token ids, cut to length where that was asked for, and what an
answer echoes. Runs in threads, since it may render templates and tokenize long texts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgspec

from treadle.errors import InvalidRequest, PromptTooLong
from treadle.server.schema.chat import ChatMessage, ChatRequest
from treadle.server.schema.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from treadle.server.schema.request import GenerationRequest
from treadle.text.chat import ChatTemplate
from treadle.text.frontend import MAX_CHARS_TO_CUT, Frontend

_NOT_KWARGS = (
    "self",
    "messages",
    "tools",
    "tokenize",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
)


@dataclasses.dataclass(frozen=True)
class Prompt:
    """One prompt as the engine gets it."""

    ids: list[int]
    num_cut: int | None = None
    """Tokens that truncation left out; None where nothing was to be cut."""
    echo: str = ""
    """Its text, where that is wanted."""
    is_text: bool = False
    """Whether it came as a text, and is echoed as that."""


def prompts_of(prompt: str | list[str | int | list[int]] | None) -> list[str | list[int]]:
    """The prompts of a completion request, whichever of the four spellings it used."""
    if prompt is None:
        raise InvalidRequest("prompt is missing", param="prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("prompt is an empty list", param="prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return [ids]
    if ids:
        raise InvalidRequest("prompt mixes token ids with other prompts", param="prompt")
    return [item for item in prompt if not isinstance(item, int)]


def encode_prompts(
    frontend: Frontend, request: CompletionRequest, prompts: Sequence[str | list[int]]
) -> list[Prompt]:
    return [_complete_prompt(frontend, request, prompt) for prompt in prompts]


def render_chat(frontend: Frontend, request: ChatRequest, *, trusted: bool) -> Prompt:
    """`trusted` says whether the request may bring a template of its own."""
    if not request.messages:
        raise InvalidRequest("messages is an empty list", param="messages")
    template = _template(frontend, request, trusted=trusted)
    text = template.render(
        [template_message(message, at) for at, message in enumerate(request.messages)],
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message is True,
        **_variables(request),
    )
    # The template writes the model's special tokens itself.
    special = request.add_special_tokens is True
    return _cut(frontend, request, _encode(frontend, request, text, special=special))


def template_message(message: ChatMessage, index: int) -> dict[str, Any]:
    """The message as templates expect it: fields that are there, calls with their arguments as
    objects. An assistant that calls tools may say nothing; that is empty text, however spelt."""
    where = f"messages[{index}]"
    plain: dict[str, Any] = msgspec.to_builtins(message)
    if message.content is None:
        if message.role != "assistant" or not message.tool_calls:
            raise InvalidRequest(f"{where}.content is missing", param=f"{where}.content")
        plain["content"] = ""
    if message.tool_calls:
        places = (f"{where}.tool_calls[{at}]" for at in range(len(message.tool_calls)))
        plain["tool_calls"] = list(map(_tool_call, message.tool_calls, places))
    return plain


def _complete_prompt(
    frontend: Frontend, request: CompletionRequest, prompt: str | list[int]
) -> Prompt:
    if isinstance(prompt, str):
        special = request.add_special_tokens is not False
        ids = _encode(frontend, request, prompt, special=special)
        keeps_bos = special and frontend.text.tokenizer.add_bos
    else:
        ids, keeps_bos = prompt, False
    cut = _cut(frontend, request, ids, num_kept=int(keeps_bos))
    if not request.echo:
        return cut
    if isinstance(prompt, str) and not cut.num_cut:
        return dataclasses.replace(cut, echo=prompt, is_text=True)
    skip = request.skip_special_tokens is not False
    return dataclasses.replace(cut, echo=frontend.text.tokenizer.decode(cut.ids, skip_special=skip))


def _encode(
    frontend: Frontend, request: GenerationRequest, text: str, *, special: bool
) -> list[int]:
    if request.truncate_prompt_tokens is None:
        return frontend.encode(text, add_special=special)
    if len(text) > MAX_CHARS_TO_CUT:
        raise PromptTooLong(
            f"the prompt has {len(text)} characters; to be truncated it may have "
            f"{MAX_CHARS_TO_CUT}",
            param="prompt",
        )
    return frontend.text.tokenizer.encode(text, add_special=special)


def _cut(
    frontend: Frontend, request: GenerationRequest, ids: list[int], *, num_kept: int = 0
) -> Prompt:
    """The prompt with as many tokens as it may have; the first `num_kept` of them stay."""
    longest = request.truncate_prompt_tokens
    if longest is None:
        kept = frontend.cut(ids)
        num_cut = len(ids) - len(kept)
        return Prompt(kept, num_cut or None)
    engine = frontend.window
    if longest > engine.max_model_len:
        raise InvalidRequest(
            f"truncate_prompt_tokens is {longest}; this model's window has "
            f"{engine.max_model_len} tokens",
            param="truncate_prompt_tokens",
        )
    if longest == -1:
        limit = min(engine.max_model_len, engine.kv_capacity_tokens)
        longest = max(limit - _answer_tokens(request), 1)
    num_cut = max(len(ids) - longest, 0)
    if num_cut == 0:
        return Prompt(ids, 0)
    if request.truncation_side == "right":
        return Prompt(ids[:longest], num_cut)
    kept = ids[: min(num_kept, longest)]
    return Prompt(kept + ids[len(ids) - longest + len(kept) :], num_cut)


def _answer_tokens(request: GenerationRequest) -> int:
    """Room to leave for the answer."""
    if isinstance(request, ChatRequest):
        return 1 if request.asked_tokens is None else request.asked_tokens
    return DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens


def _template(frontend: Frontend, request: ChatRequest, *, trusted: bool) -> ChatTemplate:
    text = frontend.text
    if request.chat_template is None:
        return text.require_template()
    if not trusted:
        raise InvalidRequest(
            "chat_template is not accepted from requests; the server's setting "
            "trust_request_chat_template allows it",
            param="chat_template",
        )
    return text.template_of(request.chat_template)


def _variables(request: ChatRequest) -> dict[str, Any]:
    """What the template sees beside messages."""
    variables: dict[str, Any] = {}
    if request.documents is not None:
        variables["documents"] = request.documents
    if request.reasoning_effort is not None:
        variables["reasoning_effort"] = request.reasoning_effort
    for name, value in (request.chat_template_kwargs or {}).items():
        if name in _NOT_KWARGS:
            raise InvalidRequest(
                f"chat_template_kwargs must not hold '{name}'", param="chat_template_kwargs"
            )
        variables[name] = value
    return variables


def _tool_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where}.function has no name", param=f"{where}.function")
    place = f"{where}.function.arguments"
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments)
        except (ValueError, RecursionError):
            raise InvalidRequest(f"{place} is not JSON", param=place) from None
    if not isinstance(arguments, dict):
        raise InvalidRequest(f"{place} is not an object", param=place)
    return {**call, "function": {**function, "arguments": arguments}}
