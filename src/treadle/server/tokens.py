"""Text to tokens and back, and chats to prompts, without an answer: /tokenize, /detokenize and
/apply-template, in the spellings of vLLM, SGLang and llama.cpp's server."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle.errors import InvalidRequest, ModelNotFound
from treadle.server.body import decode, read_body
from treadle.server.prompts import template_message
from treadle.server.route import Endpoint, json_response
from treadle.server.schema.chat import ChatMessage
from treadle.text.frontend import Frontend


class TemplateRequest(msgspec.Struct, kw_only=True):
    """A chat, to be written as one prompt."""

    messages: list[ChatMessage] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template: Any = None


class TokenizeRequest(TemplateRequest, kw_only=True):
    """A text, by one of three names, or a chat."""

    model: str | None = None
    prompt: str | None = None
    text: str | None = None
    content: str | None = None
    """llama.cpp's name; without special tokens unless asked for."""
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    """llama.cpp's name for it."""
    return_token_strs: bool | None = None
    with_pieces: Any = None
    parse_special: Any = None


class TokenizeAnswer(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    """The tokens as the vocabulary spells them, when asked for."""


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    tokens: list[int]
    model: str | None = None
    skip_special_tokens: bool | None = None


class DetokenizeAnswer(msgspec.Struct):
    """The same text, as vLLM, SGLang and llama.cpp name it."""

    prompt: str
    text: str
    content: str


class TemplateAnswer(msgspec.Struct):
    prompt: str


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """What a client must know to prepare prompts for /tokenize, under the names that
    tokenizer_config.json has (vLLM's shape)."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    add_bos_token: bool
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None


class Tokens:
    """The routes of one served model."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._tokenize = msgspec.json.Decoder(TokenizeRequest)
        self._detokenize = msgspec.json.Decoder(DetokenizeRequest)
        self._template = msgspec.json.Decoder(TemplateRequest)

    def endpoints(self) -> list[Endpoint]:
        both = ("", "/v1")
        return [
            *(self._tokenize_at(f"{root}/tokenize") for root in both),
            *(self._detokenize_at(f"{root}/detokenize") for root in both),
            Endpoint(
                "/apply-template",
                self._templates,
                "Write a chat as the prompt that the model would get.",
                methods=("POST",),
                body=TemplateRequest,
                answer=TemplateAnswer,
                errors=(503,),
            ),
            Endpoint(
                "/tokenizer_info",
                self._tells,
                "Special tokens and chat template (vLLM's).",
                answer=TokenizerInfo,
                errors=(503,),
            ),
        ]

    async def _tells(self, request: Request) -> Response:
        del request
        text = self._frontend.text
        tokenizer, ends = text.tokenizer, self._frontend.window.eos_token_ids
        bos = None if tokenizer.bos_id is None else tokenizer.token_text(tokenizer.bos_id)
        eos = tokenizer.token_text(ends[0]) if ends else None
        return json_response(
            TokenizerInfo(
                tokenizer_class="PreTrainedTokenizerFast",
                vocab_size=tokenizer.vocab_size,
                model_max_length=self._frontend.window.max_model_len,
                add_bos_token=tokenizer.add_bos,
                bos_token=bos,
                eos_token=eos,
                pad_token=eos,
                chat_template=None if text.template is None else text.template.source,
            )
        )

    def _tokenize_at(self, path: str) -> Endpoint:
        return Endpoint(
            path,
            self._tokenizes,
            "Cut a text, or a chat, into tokens.",
            methods=("POST",),
            body=TokenizeRequest,
            answer=TokenizeAnswer,
            errors=(404, 503),
        )

    def _detokenize_at(self, path: str) -> Endpoint:
        return Endpoint(
            path,
            self._detokenizes,
            "Join tokens to a text.",
            methods=("POST",),
            body=DetokenizeRequest,
            answer=DetokenizeAnswer,
            errors=(404, 503),
        )

    async def _tokenizes(self, http: Request) -> Response:
        request = decode(self._tokenize, await read_body(http))
        window = self._frontend.window.max_model_len
        self._require_served(request.model)
        tokens = await asyncio.to_thread(self._encode, request)
        answer = TokenizeAnswer(len(tokens), window, tokens)
        if request.return_token_strs:
            spell = self._frontend.text.tokenizer.spelling
            answer.token_strs = [spell(token) for token in tokens]
        return json_response(answer)

    async def _detokenizes(self, http: Request) -> Response:
        request = decode(self._detokenize, await read_body(http))
        tokenizer = self._frontend.text.tokenizer
        self._require_served(request.model)
        tokens = request.tokens
        for token in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= token < tokenizer.vocab_size:
                raise InvalidRequest(
                    f"tokens holds {token}; token ids run from 0 to {tokenizer.vocab_size - 1}",
                    param="tokens",
                )
        skip = request.skip_special_tokens is True
        text = await asyncio.to_thread(tokenizer.decode, tokens, skip_special=skip)
        return json_response(DetokenizeAnswer(text, text, text))

    async def _templates(self, http: Request) -> Response:
        request = decode(self._template, await read_body(http))
        return json_response(TemplateAnswer(await asyncio.to_thread(self._render, request)))

    def _encode(self, request: TokenizeRequest) -> list[int]:
        if request.with_pieces:
            raise InvalidRequest("with_pieces is not supported", param="with_pieces")
        if request.parse_special is False:
            raise InvalidRequest("parse_special false is not supported", param="parse_special")
        names = ("prompt", "text", "content", "messages")
        given = [name for name in names if getattr(request, name) is not None]
        if len(given) != 1:
            raise InvalidRequest(
                "exactly one of prompt, text, content and messages must be given",
                param=given[1] if given else "prompt",
            )
        [name] = given
        asked = request.add_special if name == "content" else request.add_special_tokens
        # A template writes the special tokens itself; llama.cpp adds none to a content.
        special = name in ("prompt", "text") if asked is None else asked
        text = self._render(request) if name == "messages" else getattr(request, name)
        return self._frontend.encode(text, add_special=special)

    def _render(self, request: TemplateRequest) -> str:
        template = self._frontend.text.require_template()
        if not request.messages:
            raise InvalidRequest("messages is missing or empty", param="messages")
        if request.chat_template:
            raise InvalidRequest("chat_template is not supported", param="chat_template")
        variables = request.chat_template_kwargs or {}
        for name in ("self", "messages", "add_generation_prompt", "continue_final_message"):
            if name in variables:
                raise InvalidRequest(
                    f"chat_template_kwargs must not hold '{name}'", param="chat_template_kwargs"
                )
        return template.render(
            [template_message(message, at) for at, message in enumerate(request.messages)],
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=bool(request.continue_final_message),
            **{"tools": request.tools, **variables},
        )

    def _require_served(self, model: str | None) -> None:
        if model is not None and model not in self._frontend.names:
            raise ModelNotFound(
                f"the model '{model}' does not exist; this server has '{self._frontend.name}'",
                param="model",
            )
