"""What the server is and how much it has to do: for routers and people. Shows no keys."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle.config.explain import Case, Explanation, explain
from treadle.config.facts import ModelFacts
from treadle.config.given import SECTIONS
from treadle.config.hardware import Hardware
from treadle.config.settings import EngineSettings, ServerSettings
from treadle.server.probes import VERSION
from treadle.server.route import Endpoint, json_response
from treadle.text.frontend import Frontend
from treadle.text.sglang_answer import WEIGHT_VERSION
from treadle.wire.messages import Ready, Stats


@dataclasses.dataclass(frozen=True)
class Configuration:
    """What the server was told to be."""

    engine: EngineSettings
    server: ServerSettings

    def given(self) -> dict[str, Any]:
        """The settings given, flat, without keys and without those left open."""
        sections = [getattr(self.engine, name) for name in SECTIONS if name != "server"]
        flat: dict[str, Any] = {}
        for section in (*sections, self.server.without_secrets()):
            flat |= msgspec.to_builtins(section)
        flat["preset"] = self.engine.preset
        return {name: value for name, value in flat.items() if value not in (None, [])}


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
    explanation: Explanation | None
    """What `treadle explain` prints; null where the engine does not say what it started from."""
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


class Info:
    """The routes of one served model."""

    def __init__(self, frontend: Frontend, configuration: Configuration) -> None:
        self._frontend = frontend
        self._configuration = configuration

    def endpoints(self) -> list[Endpoint]:
        info = "Settings, limits and state."
        return [
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
        ]

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
                explanation=self._explanation(window),
                sampling_defaults=self._sampling_defaults(),
                internal_states=[] if frontend.stats is None else [frontend.stats],
            )
        )

    def _explanation(self, ready: Ready) -> Explanation | None:
        if not ready.inputs:
            return None
        settings = self._configuration
        facts = msgspec.convert(ready.inputs["model"], ModelFacts)
        machine = msgspec.convert(ready.inputs["machine"], Hardware)
        return explain(Case(settings.engine, facts, machine, None, settings.server))

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
        self._frontend.require_ready()
        return json_response(ServerLoad(self._frontend.num_open))
