"""Bodies with something wrong in any place: never a 5xx, an error that names the place, and no harm
to the next request."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server import fake_engine as script
from treadle.config.settings import EngineSettings, ServerSettings
from treadle.server.app import create_app
from treadle.server.info import Configuration
from treadle.server.metrics import Metrics
from treadle.server.schema.chat import ChatRequest
from treadle.server.schema.completions import CompletionRequest
from treadle.text.frontend import Frontend
from treadle.text.load import ModelText
from treadle.text.sglang import GenerateRequest
from treadle.wire.messages import FromEngine, Generate, ToEngine
from treadle.wire.sampling_params import SamplingParams

EXAMPLES = 400

SETTINGS = Configuration(EngineSettings(), ServerSettings())

COMPLETIONS, CHATS, NATIVE = "/v1/completions", "/v1/chat/completions", "/generate"

BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {
        "model": "fake",
        "prompt": ["to be mutated", "a b"],
        "max_tokens": 3,
        "temperature": 0.5,
        "stop": ["x y z"],
        "logit_bias": {"7": 1.5},
        "logprobs": 2,
        "n": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    CHATS: {
        "model": "fake",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "to be mutated"}], "name": "x"},
        ],
        "max_completion_tokens": 3,
        "logprobs": True,
        "top_logprobs": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"flag": True},
        "response_format": {"type": "text"},
    },
    NATIVE: {
        "text": ["to be mutated", "a b"],
        "sampling_params": {"max_new_tokens": 3, "temperature": 0.5, "stop": ["x y z"], "n": 2},
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": 2,
        "stream": True,
    },
}
TYPES = {COMPLETIONS: CompletionRequest, CHATS: ChatRequest, NATIVE: GenerateRequest}

NATIVE_NAMES = {"max_new_tokens", "min_new_tokens", "sampling_seed", "no_stop_trim"}

ALSO: dict[str, set[str]] = {
    "stream": {"stream_options", "prompt_logprobs"},
    "max_tokens": {"min_tokens", "prompt"},
    "max_completion_tokens": {"min_tokens", "max_tokens", "messages", "prompt"},
    "min_tokens": {"max_tokens"},
    "logprobs": {"top_logprobs"},
    "n": {"best_of"},
    "prompt": {"n", "max_tokens"},
    "messages": {"prompt", "max_tokens"},
    "echo": {"logprobs", "max_tokens"},
    "add_generation_prompt": {"continue_final_message"},
    "continue_final_message": {"add_generation_prompt", "messages"},
    "chat_template_kwargs": {"messages", "prompt"},
    "add_special_tokens": {"prompt"},
    "text": {"input_ids", "sampling_params", "prompt"},
    "input_ids": {"text", "prompt"},
    "sampling_params": {*SamplingParams.__struct_fields__, *NATIVE_NAMES, "text"},
    "return_logprob": {"logprob_start_len", "top_logprobs_num", "token_ids_logprob"},
    "logprob_start_len": {"prompt_logprobs_start"},
    "top_logprobs_num": {"logprobs", "prompt_logprobs"},
    "token_ids_logprob": {"logprob_token_ids"},
    "rid": {"text"},
}
"""Fields that may be named instead: a value can be wrong because of another one's, and intake calls
whatever goes to the model the prompt."""

SCALARS: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 7, 1.5, -0.0, 1e308, -1e308, 5e-324, float("nan")),
    *(float("inf"), float("-inf"), 2**31 - 1, 2**31, -(2**31), 2**53, 2**63, 2**64, -(2**64)),
    *(10**400, "", "a", "\0", "\ufffd", "\ud800", "é💶\u202e", "fake", "text", "auto", "a" * 5000),
]

hostile = st.recursive(
    st.one_of(st.sampled_from(SCALARS), st.text(max_size=8), st.integers(), st.floats()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


class FakeChannel:
    """The scripted engine in the same event loop. Its commands are out of reach."""

    def __init__(self) -> None:
        self._engine = script.FakeEngine(script.WINDOW, script.ROWS)
        self._news = asyncio.Event()

    def send(self, messages: Sequence[ToEngine]) -> None:
        for message in messages:
            self._engine.handle(_harmless(message))
        self._news.set()

    async def run(self, take: Callable[[list[FromEngine]], None]) -> None:
        take([self._engine.ready()])
        while True:
            while not self._engine.has_work:
                self._news.clear()
                await self._news.wait()
            await asyncio.sleep(0)
            take(self._engine.step())

    def close(self) -> None: ...

    @property
    def num_running(self) -> int:
        return self._engine.stats().running


def _harmless(message: ToEngine) -> ToEngine:
    if isinstance(message, Generate) and script.HOLD <= message.prompt[0] <= script.BURST:
        return msgspec.structs.replace(message, prompt=[7, *message.prompt[1:]])
    return message


class App:
    """The application in an event loop that lives as long as the tests of this file."""

    def __init__(self, text: ModelText) -> None:
        self._runner = asyncio.Runner()
        self._stack = contextlib.AsyncExitStack()
        self.channel: FakeChannel
        self._client: httpx.AsyncClient
        self._runner.run(self._start(text))

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def post(self, path: str, body: bytes) -> httpx.Response:
        return self._runner.run(self._client.post(path, content=body))

    async def _start(self, text: ModelText) -> None:
        self.channel = FakeChannel()
        metrics = Metrics("fake")
        frontend = Frontend(self.channel, ["fake"], observer=metrics, announce=lambda _: None)
        frontend.set_text(text)
        await self._stack.enter_async_context(_running(frontend, self.channel))
        await frontend.ready()
        transport = httpx.ASGITransport(create_app(frontend, metrics, SETTINGS))
        client = httpx.AsyncClient(transport=transport, base_url="http://fake")
        self._client = await self._stack.enter_async_context(client)


@contextlib.asynccontextmanager
async def _running(frontend: Frontend, channel: FakeChannel) -> AsyncIterator[None]:
    task = asyncio.create_task(frontend.run(channel))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture(scope="module")
def app(text: ModelText) -> Iterator[App]:
    app = App(text)
    yield app
    app.close()


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, str, dict[str, Any]]:
    """A path, the field that was changed, and the body."""
    path = draw(st.sampled_from(list(BODIES)))
    body = copy.deepcopy(BODIES[path])
    if not draw(st.booleans()):
        body.pop("stream")
        body.pop("stream_options", None)
    fields = [field.encode_name for field in msgspec.structs.fields(TYPES[path])]
    field = draw(st.sampled_from(sorted({*fields, *body})))
    body[field] = draw(changed(body[field]) if field in body else hostile)
    return path, field, body


def changed(value: Any) -> st.SearchStrategy[Any]:
    """Something else in the value's place, or in any place inside it."""
    if isinstance(value, list) and value:
        places: list[Any] = list(range(len(value)))
    elif isinstance(value, dict) and value:
        places = list(value)
    else:
        return hostile

    def put(place: Any, inner: Any) -> Any:
        copied = copy.copy(value)
        copied[place] = inner
        return copied

    inside = [st.builds(put, st.just(place), changed(value[place])) for place in places]
    return st.one_of(hostile, *inside)


def strict(text: bytes | str) -> Any:
    return json.loads(text, parse_constant=pytest.fail)


def refusal(response: httpx.Response) -> dict[str, Any]:
    body = strict(response.content)
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def check_answer(response: httpx.Response) -> None:
    if not response.headers["content-type"].startswith("text/event-stream"):
        assert strict(response.content)
        return
    *events, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert not any("error" in strict(event.removeprefix("data: ")) for event in events)


def check_next(app: App) -> None:
    assert app.channel.num_running == 0
    plain = app.post(COMPLETIONS, b'{"prompt": [5, 6, 7], "max_tokens": 4, "logprobs": 0}')
    answer = strict(plain.content)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 4


@settings(max_examples=EXAMPLES)
@given(case=mutated())
def test_one_wrong_place(app: App, case: tuple[str, str, dict[str, Any]]) -> None:
    path, field, body = case
    response = app.post(path, json.dumps(body).encode())
    if response.status_code == 200:
        check_answer(response)
    else:
        assert response.status_code in (400, 404), response.text
        error = refusal(response)
        assert error["type"] == "invalid_request_error"
        place = (error["param"] or "").partition("[")[0].partition(".")[0]
        assert place in {field, *ALSO.get(field, ())}, error
    check_next(app)


@settings(max_examples=EXAMPLES)
@given(
    path=st.sampled_from(list(BODIES)),
    at=st.integers(0, 400),
    length=st.integers(0, 12),
    piece=st.one_of(
        st.binary(max_size=6),
        st.sampled_from([b"NaN", b"null", b"[" * 2000, b'{"a":' * 300, b"1" * 500, b'"', b"\\u"]),
    ),
)
def test_damaged_text(app: App, path: str, at: int, length: int, piece: bytes) -> None:
    """Any bytes in place of a stretch of the body."""
    body = json.dumps(BODIES[path]).encode()
    response = app.post(path, body[:at] + piece + body[at + length :])
    if response.status_code == 200:
        check_answer(response)
    else:
        assert response.status_code in (400, 404), response.text
        refusal(response)
    check_next(app)
