"""The OpenAI routes: /v1/models, /v1/completions and /v1/chat/completions.

Each request is decoded, checked whole and only then sent on, so a bad member of a list of prompts
leaves nothing running. Never blocks the event loop with a template or a tokenizer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import secrets
import time
from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle import __version__
from treadle.config.settings import ServerSettings
from treadle.errors import InvalidRequest, ModelNotFound
from treadle.server.answers import Shape
from treadle.server.body import decode, read_body
from treadle.server.chat_shape import ChatShape
from treadle.server.completion_shape import CompletionShape
from treadle.server.exchange import Exchange, Kind, Label
from treadle.server.place import place_of
from treadle.server.prompts import Prompt, encode_prompts, prompts_of, render_chat
from treadle.server.route import Endpoint, json_response
from treadle.server.schema.answer import Answer, ModelCard, ModelList
from treadle.server.schema.chat import ChatChoice, ChatRequest
from treadle.server.schema.completions import CompletionChoice, CompletionRequest
from treadle.text.frontend import Frontend
from treadle.text.intake import Accepted, Place, check_number
from treadle.text.load import ModelText
from treadle.wire.sampling_params import SamplingParams


class OpenAI:
    """The routes of one served model."""

    def __init__(self, frontend: Frontend, settings: ServerSettings) -> None:
        self._frontend = frontend
        self._settings = settings
        self._started = int(time.time())
        self._fingerprint = ""
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
        given = prompts_of(request.prompt)
        params = self._params(request, text)
        check_number(len(given), params.n, self._settings.max_answers)
        prompts = await asyncio.to_thread(encode_prompts, self._frontend, request, given)
        shape = CompletionShape(text.tokenizer, request, prompts)
        kinds: tuple[Kind, Kind] = ("text_completion", "text_completion")
        place = place_of(http, request.priority, request.routing_key)
        accepted = [self._accept(prompt, params, place) for prompt in prompts]
        exchange = self._exchange(request, prompts, accepted, shape, kinds)
        return await exchange.respond(http, self._frontend)

    async def _chats(self, http: Request) -> Response:
        request = decode(self._chat, await read_body(http))
        text = self._admit(request)
        params = self._params(request, text)
        check_number(1, params.n, self._settings.max_answers)
        trusted = self._settings.trust_request_chat_template
        prompt = await asyncio.to_thread(render_chat, self._frontend, request, trusted=trusted)
        shape = ChatShape(text.tokenizer, request, prompt)
        kinds: tuple[Kind, Kind] = ("chat.completion", "chat.completion.chunk")
        place = place_of(http, request.priority, request.routing_key)
        accepted = [self._accept(prompt, params, place)]
        exchange = self._exchange(request, [prompt], accepted, shape, kinds)
        return await exchange.respond(http, self._frontend)

    def _admit(self, request: CompletionRequest | ChatRequest) -> ModelText:
        text = self._frontend.text  # raises while loading, before a word on the request itself
        if request.model is not None:
            self._require_served(request.model)
        request.check()
        return text

    def _params(self, request: CompletionRequest | ChatRequest, text: ModelText) -> SamplingParams:
        most, asked = self._settings.max_output_tokens, request.asked_tokens
        if most is not None and asked is not None and asked > most:
            raise InvalidRequest(
                f"max_tokens is {asked}; this server's answers have at most {most} tokens",
                param="max_tokens",
            )
        return request.params(text.sampling_defaults)

    def _exchange(
        self,
        request: CompletionRequest | ChatRequest,
        prompts: Sequence[Prompt],
        accepted: Sequence[Accepted],
        shape: Shape,
        kinds: tuple[Kind, Kind],
    ) -> Exchange:
        prefix = "chatcmpl" if isinstance(request, ChatRequest) else "cmpl"
        return Exchange(
            request=request,
            prompts=prompts,
            accepted=accepted,
            shape=shape,
            label=Label(
                id=f"{prefix}-{request.request_id or secrets.token_hex(16)}",
                created=int(time.time()),
                model=self._frontend.name,
                fingerprint=self._fingerprint or self._take_fingerprint(),
            ),
            kinds=kinds,
            timed=request.wants_timings or self._settings.enable_timings,
        )

    def _accept(self, prompt: Prompt, params: SamplingParams, place: Place) -> Accepted:
        accepted = dataclasses.replace(self._frontend.check(prompt.ids, params), place=place)
        most, longest = self._settings.max_output_tokens, accepted.params.max_tokens
        if most is None or longest is None or longest <= most:
            return accepted
        shorter = msgspec.structs.replace(accepted.params, max_tokens=most)
        return dataclasses.replace(accepted, params=shorter)

    def _take_fingerprint(self) -> str:
        """Of version, model and the settings in effect; they last as long as the server."""
        about = [__version__, self._frontend.name, self._frontend.window.resolved]
        digest = hashlib.sha256(msgspec.json.encode(about, order="sorted"))
        self._fingerprint = f"fp_{digest.hexdigest()[:10]}"
        return self._fingerprint

    def _require_served(self, model: str) -> None:
        if model not in self._frontend.names:
            raise ModelNotFound(
                f"the model '{model}' does not exist; this server has '{self._frontend.name}'",
                param="model",
            )

    def _card(self) -> ModelCard:
        window = self._frontend.window.max_model_len
        return ModelCard(self._frontend.name, self._started, window)
