"""The OpenAI routes: /v1/models, /v1/completions and /v1/chat/completions.

Each request is decoded, checked whole and only then sent on, so a bad member of a list of prompts
leaves nothing running. Never blocks the event loop with a template or a tokenizer.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle.errors import InvalidRequest, ModelNotFound
from treadle.server.answers import ChatShape, CompletionShape, Shape, Tally
from treadle.server.body import decode, read_body
from treadle.server.route import Endpoint, json_response
from treadle.server.schema import (
    Answer,
    ChatChoice,
    ChatMessage,
    ChatRequest,
    Choice,
    CompletionChoice,
    CompletionRequest,
    GenerationRequest,
    ModelCard,
    ModelList,
    Usage,
)
from treadle.server.stream import DONE, EventStream, event, unless_gone
from treadle.text.choice import ChoiceDelta
from treadle.text.frontend import Frontend
from treadle.text.intake import Accepted, check_number
from treadle.text.load import ModelText

Kind = Literal["text_completion", "chat.completion", "chat.completion.chunk"]


@dataclass(frozen=True)
class _Exchange:
    """One HTTP request on its way: what goes to the engine, and how its answer is written."""

    request: GenerationRequest
    accepted: list[Accepted]
    shape: Shape
    id: str
    created: int
    kind: Kind
    chunk_kind: Kind


class OpenAI:
    """The routes of one served model."""

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self._started = int(time.time())
        self._completion = msgspec.json.Decoder(CompletionRequest)
        self._chat = msgspec.json.Decoder(ChatRequest)

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                "/v1/models", self._models, "The served model.", answer=ModelList, errors=(503,)
            ),
            Endpoint(
                "/v1/models/{model:path}",
                self._model,
                "The served model, by a name of its.",
                answer=ModelCard,
                errors=(404, 503),
            ),
            Endpoint(
                "/v1/completions",
                self._completions,
                "Continue prompts.",
                methods=("POST",),
                body=CompletionRequest,
                answer=Answer[CompletionChoice],
                streams=True,
                errors=(404,),
            ),
            Endpoint(
                "/v1/chat/completions",
                self._chats,
                "Answer a chat.",
                methods=("POST",),
                body=ChatRequest,
                answer=Answer[ChatChoice],
                streams=True,
                errors=(404,),
            ),
        ]

    async def _models(self, request: Request) -> Response:
        del request
        return json_response(ModelList([self._card()]))

    async def _model(self, request: Request) -> Response:
        self._require_served(request.path_params["model"])
        return json_response(self._card())

    async def _completions(self, http: Request) -> Response:
        request = decode(self._completion, await read_body(http))
        text = self._admit(request)
        prompts = prompts_of(request.prompt)
        params = request.params(text.sampling_defaults)
        check_number(len(prompts), params.n)
        special = request.add_special_tokens is not False
        ids = await asyncio.to_thread(_encode_all, self._frontend, prompts, special)
        accepted = [self._frontend.check(prompt, params) for prompt in ids]
        echoes: list[str] = []
        if request.echo:
            skip = params.skip_special_tokens
            echoes = [_spell(text, prompt, skip) for prompt in prompts]
        exchange = _Exchange(
            request,
            accepted,
            CompletionShape(text.tokenizer, accepted, echoes),
            id=f"cmpl-{secrets.token_hex(16)}",
            created=int(time.time()),
            kind="text_completion",
            chunk_kind="text_completion",
        )
        return await self._answer(http, exchange)

    async def _chats(self, http: Request) -> Response:
        request = decode(self._chat, await read_body(http))
        text = self._admit(request)
        params = request.params(text.sampling_defaults)
        prompt = await asyncio.to_thread(_render, self._frontend, request)
        accepted = [self._frontend.check(prompt, params)]
        exchange = _Exchange(
            request,
            accepted,
            ChatShape(text.tokenizer, accepted),
            id=f"chatcmpl-{secrets.token_hex(16)}",
            created=int(time.time()),
            kind="chat.completion",
            chunk_kind="chat.completion.chunk",
        )
        return await self._answer(http, exchange)

    def _admit(self, request: GenerationRequest) -> ModelText:
        text = self._frontend.text  # raises while loading, before a word on the request itself
        if request.model is not None:
            self._require_served(request.model)
        request.refuse_unsupported()
        return text

    def _require_served(self, model: str) -> None:
        if model not in self._frontend.names:
            raise ModelNotFound(
                f"the model '{model}' does not exist; this server has '{self._frontend.name}'",
                param="model",
            )

    def _card(self) -> ModelCard:
        window = self._frontend.window.max_model_len
        return ModelCard(self._frontend.name, self._started, window)

    async def _answer(self, http: Request, exchange: _Exchange) -> Response:
        if exchange.request.stream:
            return EventStream(self._events(exchange))
        return json_response(await unless_gone(http.receive, self._whole(exchange)))

    async def _whole(self, exchange: _Exchange) -> Answer[Choice]:
        tally = Tally(exchange.accepted)
        answers: dict[int, ChoiceDelta] = {}
        async with contextlib.aclosing(self._generate(exchange)) as arrivals:
            async for parts in arrivals:
                for part in parts:
                    tally.add(part)
                    answer = answers.setdefault(part.index, part)
                    if answer is not part:
                        answer.append(part)
        choices = [exchange.shape.whole(answers[index]) for index in sorted(answers)]
        return self._envelope(exchange, exchange.kind, choices, usage=tally.usage())

    async def _events(self, exchange: _Exchange) -> AsyncGenerator[bytes, None]:
        tally = Tally(exchange.accepted)
        chunk = self._chunk_writer(exchange)
        async with contextlib.aclosing(self._generate(exchange)) as arrivals:
            async for parts in arrivals:
                events = b""
                for part in parts:
                    tally.add(part)
                    for choice in exchange.shape.chunks(part):
                        events += chunk([choice], None)
                if events:
                    yield events
        last = chunk([], tally.usage()) if exchange.request.include_usage else b""
        yield last + DONE

    def _chunk_writer(self, exchange: _Exchange) -> Callable[[list[Choice], Usage | None], bytes]:
        with_usage = exchange.request.include_usage

        def write(choices: list[Choice], usage: Usage | None) -> bytes:
            answer = self._envelope(exchange, exchange.chunk_kind, choices)
            if with_usage:
                answer.usage = usage
            return event(answer)

        return write

    def _generate(self, exchange: _Exchange) -> AsyncGenerator[list[ChoiceDelta], None]:
        return self._frontend.generate(
            exchange.accepted,
            request_id=exchange.id,
            cache_salt=exchange.request.cache_salt or "",
        )

    def _envelope(
        self,
        exchange: _Exchange,
        kind: Kind,
        choices: list[Choice],
        *,
        usage: Usage | msgspec.UnsetType = msgspec.UNSET,
    ) -> Answer[Choice]:
        return Answer(exchange.id, kind, exchange.created, self._frontend.name, choices, usage)


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


def _encode_all(
    frontend: Frontend, prompts: list[str | list[int]], special: bool
) -> list[list[int]]:
    return [
        frontend.encode(prompt, add_special=special) if isinstance(prompt, str) else prompt
        for prompt in prompts
    ]


def _spell(text: ModelText, prompt: str | list[int], skip_special: bool) -> str:
    if isinstance(prompt, str):
        return prompt
    return text.tokenizer.decode(prompt, skip_special=skip_special)


def _render(frontend: Frontend, request: ChatRequest) -> list[int]:
    if not request.messages:
        raise InvalidRequest("messages is an empty list", param="messages")
    messages = [_plain_message(message, at) for at, message in enumerate(request.messages)]
    prompt = frontend.text.require_template().render(
        messages,
        add_generation_prompt=request.add_generation_prompt is not False,
        **_template_kwargs(request),
    )
    # The template writes the model's special tokens itself.
    return frontend.encode(prompt, add_special=request.add_special_tokens is True)


def _template_kwargs(request: ChatRequest) -> dict[str, Any]:
    kwargs = request.chat_template_kwargs or {}
    for name in ("self", "messages", "add_generation_prompt", "tools"):
        if name in kwargs:
            raise InvalidRequest(
                f"chat_template_kwargs must not hold '{name}'", param="chat_template_kwargs"
            )
    return kwargs


def _plain_message(message: ChatMessage, index: int) -> dict[str, object]:
    """The message as templates expect it: text content, no absent fields."""
    where = f"messages[{index}]"
    if message.tool_calls:
        raise InvalidRequest(f"{where}.tool_calls is not supported", param=f"{where}.tool_calls")
    plain: dict[str, object] = {"role": message.role, "content": _content(message, where)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _content(message: ChatMessage, where: str) -> str:
    if message.content is None:
        raise InvalidRequest(f"{where}.content is missing", param=f"{where}.content")
    if isinstance(message.content, str):
        return message.content
    texts: list[str] = []
    for index, part in enumerate(message.content):
        place = f"{where}.content[{index}]"
        if part.type != "text":
            raise InvalidRequest(
                f"{place}.type is '{part.type}'; only text is supported", param=f"{place}.type"
            )
        if part.text is None:
            raise InvalidRequest(f"{place}.text is missing", param=f"{place}.text")
        texts.append(part.text)
    return "\n".join(texts)
