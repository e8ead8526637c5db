"""Whether the server is there and well, and what it is: for load balancers, routers and people.

Each probe says one thing: /live that the process answers, /health that requests are served,
/health_generate that the engine makes tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.metadata
import secrets
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from treadle.config.settings import EngineSettings, ServerSettings
from treadle.errors import EngineError, OverloadError, TreadleError
from treadle.server.metrics import Metrics
from treadle.server.route import Endpoint, json_response
from treadle.text.frontend import Frontend
from treadle.text.sglang_answer import WEIGHT_VERSION
from treadle.wire.messages import Stats
from treadle.wire.sampling_params import SamplingParams

VERSION = importlib.metadata.version("treadle")

LOOK_EVERY_S = 0.25
"""How often /health_generate looks whether other requests got tokens."""


@dataclasses.dataclass(frozen=True)
class Configuration:
    """What the server was told to be."""

    engine: EngineSettings
    server: ServerSettings

    def given(self) -> dict[str, Any]:
        """The settings given, flat, without keys and without those left open."""
        sections = [getattr(self.engine, name) for name in self.engine.__struct_fields__]
        flat: dict[str, Any] = {}
        for section in (*sections, self.server.without_secrets()):
            flat |= msgspec.to_builtins(section)
        return {name: value for name, value in flat.items() if value not in (None, [])}


class Health(msgspec.Struct, kw_only=True):
    status: str
    message: str | UnsetType = UNSET
    phase: str | UnsetType = UNSET
    """While loading: the phase that has ended last."""


class Version(msgspec.Struct):
    version: str


class WeightVersion(msgspec.Struct):
    weight_version: str


class ModelInfo(msgspec.Struct, kw_only=True):
    """SGLang's shape."""

    model_path: str
    tokenizer_path: str
    is_generation: bool
    preferred_sampling_params: dict[str, float] | None
    weight_version: str
    has_image_understanding: bool = False
    has_audio_understanding: bool = False


class SamplingDefaults(msgspec.Struct):
    values: dict[str, float]
    """For requests that leave these fields open."""
    source: str


class ServerInfo(msgspec.Struct, kw_only=True):
    """SGLang's names where it has them; settings under our own."""

    version: str
    model_path: str
    tokenizer_path: str
    served_model_name: str
    model_names: list[str]
    """Every name the model answers to."""
    max_model_len: int
    max_total_num_tokens: int
    """Tokens whose KV fits in memory."""
    vocab_size: int
    tp_size: int = 1
    dp_size: int = 1
    settings: dict[str, Any]
    """As given; what was left open is in `resolved`."""
    resolved: dict[str, Any]
    sampling_defaults: SamplingDefaults
    internal_states: list[Stats]


class Load(msgspec.Struct):
    """SGLang's shape; one entry, as there is one engine."""

    dp_rank: int
    num_reqs: int
    num_waiting_reqs: int
    num_tokens: int


class ServerLoad(msgspec.Struct):
    """vLLM's shape."""

    server_load: int


class Probes:
    """The routes of one served model."""

    def __init__(self, frontend: Frontend, metrics: Metrics, configuration: Configuration) -> None:
        self._frontend = frontend
        self._metrics = metrics
        self._configuration = configuration

    def endpoints(self) -> list[Endpoint]:
        info = "Settings, limits and state."
        return [
            Endpoint("/live", self._live, "The process answers.", answer=Health, access="open"),
            Endpoint(
                "/health",
                self._health,
                "Requests are served; 503 while loading, stopping or broken.",
                answer=Health,
                access="open",
                tells=(503,),
            ),
            Endpoint(
                "/ping",
                self._health,
                "The same as /health.",
                methods=("GET", "POST"),
                answer=Health,
                access="open",
                tells=(503,),
            ),
            Endpoint(
                "/health_generate",
                self._health_generate,
                "The engine makes tokens.",
                answer=Health,
                access="open",
                tells=(503,),
            ),
            Endpoint("/version", self._version, "Its version.", answer=Version, access="open"),
            Endpoint("/server_info", self._server_info, info, answer=ServerInfo, errors=(503,)),
            Endpoint("/get_server_info", self._server_info, info, answer=ServerInfo, errors=(503,)),
            Endpoint(
                "/get_model_info",
                self._model_info,
                "The model (SGLang's).",
                answer=ModelInfo,
                errors=(503,),
            ),
            Endpoint(
                "/get_weight_version",
                self._weight_version,
                "The weights' version (SGLang's).",
                answer=WeightVersion,
            ),
            Endpoint(
                "/get_load", self._get_load, "Load (SGLang's).", answer=list[Load], errors=(503,)
            ),
            Endpoint("/load", self._load, "Load (vLLM's).", answer=ServerLoad, errors=(503,)),
            Endpoint(
                "/metrics",
                self._exposition,
                "Metrics for Prometheus.",
                media="text/plain",
                access="open",
            ),
        ]

    async def _live(self, request: Request) -> Response:
        del request
        return json_response(Health(status="ok"))

    async def _health(self, request: Request) -> Response:
        del request
        try:
            self._frontend.window  # noqa: B018 (raises unless requests are served)
        except TreadleError as error:
            return self._unavailable(error)
        return json_response(Health(status="ok"))

    async def _health_generate(self, request: Request) -> Response:
        """A token for this probe, or for anybody: where all rows are taken, the probe waits like
        any request, and the engine is well."""
        del request
        limit = self._configuration.server.health_generate_timeout
        try:
            self._frontend.window  # noqa: B018
            probe = asyncio.create_task(self._make_token())
            try:
                async with asyncio.timeout(limit):
                    await self._until_tokens(probe)
            finally:
                probe.cancel()
                await asyncio.gather(probe, return_exceptions=True)
        except TimeoutError:
            return self._unavailable(OverloadError(f"the engine made no token within {limit:g} s"))
        except TreadleError as error:
            return self._unavailable(error)
        return json_response(Health(status="ok"))

    async def _make_token(self) -> None:
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        accepted = self._frontend.check([0], params)
        name = f"health-{secrets.token_hex(8)}"
        async with contextlib.aclosing(
            self._frontend.generate([accepted], request_id=name)
        ) as arrivals:
            async for parts in arrivals:
                if any(part.token_ids for part in parts):
                    return
        raise EngineError("the engine ended a request without a token")

    async def _until_tokens(self, probe: asyncio.Task[None]) -> None:
        """Until the probe has its token or, where it waits or finds the queue full, others have."""
        before = self._num_tokens()
        while True:
            await asyncio.wait([probe], timeout=LOOK_EVERY_S)
            if self._num_tokens() > before:
                return
            if probe.done():
                error = probe.exception()
                if error is None:
                    return
                if not isinstance(error, OverloadError):
                    raise error
                self._frontend.window  # noqa: B018 (it may be the server that is at its end)
                await asyncio.sleep(LOOK_EVERY_S)

    def _num_tokens(self) -> int:
        stats = self._frontend.stats
        return 0 if stats is None else stats.generation_tokens

    def _unavailable(self, error: TreadleError) -> Response:
        body = Health(status="unavailable", message=error.message)
        if self._frontend.loading:
            body.phase = self._frontend.phase
        return json_response(body, OverloadError.status)

    async def _exposition(self, request: Request) -> Response:
        del request
        return Response(self._metrics.exposition(), media_type=CONTENT_TYPE_LATEST)

    async def _version(self, request: Request) -> Response:
        del request
        return json_response(Version(VERSION))

    async def _weight_version(self, request: Request) -> Response:
        del request
        return json_response(WeightVersion(WEIGHT_VERSION))

    async def _model_info(self, request: Request) -> Response:
        del request
        model = self._configuration.engine.model.model
        defaults = self._frontend.text.sampling_defaults
        return json_response(
            ModelInfo(
                model_path=model,
                tokenizer_path=model,
                is_generation=True,
                preferred_sampling_params=dict(defaults) or None,
                weight_version=WEIGHT_VERSION,
            )
        )

    async def _server_info(self, request: Request) -> Response:
        del request
        frontend, model = self._frontend, self._configuration.engine.model
        window = frontend.window
        return json_response(
            ServerInfo(
                version=VERSION,
                model_path=model.model,
                tokenizer_path=model.model,
                served_model_name=frontend.name,
                model_names=sorted(frontend.names),
                max_model_len=window.max_model_len,
                max_total_num_tokens=window.kv_capacity_tokens,
                vocab_size=window.vocab_size,
                settings=self._configuration.given(),
                resolved=window.resolved,
                sampling_defaults=self._sampling_defaults(),
                internal_states=[] if frontend.stats is None else [frontend.stats],
            )
        )

    def _sampling_defaults(self) -> SamplingDefaults:
        values = dict(self._frontend.text.sampling_defaults)
        source = "the model's file suggests none"
        if values:
            source = "the model's file"
        elif self._configuration.engine.model.generation_config == "none":
            source = "those of the model's file are switched off (generation_config is none)"
        return SamplingDefaults(values, source)

    async def _get_load(self, request: Request) -> Response:
        del request
        capacity = self._frontend.window.kv_capacity_tokens
        stats = self._frontend.stats
        if stats is None:
            return json_response([Load(0, self._frontend.num_open, 0, 0)])
        num_tokens = round(stats.kv_usage * capacity)
        num_requests = stats.running + stats.waiting
        return json_response([Load(0, num_requests, stats.waiting, num_tokens)])

    async def _load(self, request: Request) -> Response:
        del request
        self._frontend.window  # noqa: B018
        return json_response(ServerLoad(self._frontend.num_open))
