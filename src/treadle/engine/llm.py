"""`LLM`: the engine inside the caller's process, with vLLM's names.

    llm = LLM("demo")
    outputs = llm.generate(["The capital of France is"], SamplingParams(max_tokens=8))

The same engine and text side as the server's, without HTTP or a second process: each call steps the
engine until its own answers are complete. The engine lives in a thread of its own, so that Ctrl-C
in a caller interrupts the waiting, never a step.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from tqdm import tqdm

from treadle.config.settings import engine_settings
from treadle.engine.build import build_engine
from treadle.engine.outputs import RequestOutput, StreamPiece, completion_output
from treadle.errors import EngineError, InvalidRequest, RequestError, TreadleError
from treadle.models.source import resolve_model
from treadle.text.choice import Choice, ChoiceDelta
from treadle.text.intake import Accepted, check, fan_out
from treadle.text.load import load_text
from treadle.text.output import AnswerText
from treadle.wire.messages import Abort, Delta, Failed, Generate, Progress
from treadle.wire.sampling_params import SamplingParams

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, or vLLM's {"prompt": …} or {"prompt_token_ids": …}."""


@dataclasses.dataclass
class _Call:
    """One call in progress: parts not yet taken, and the requests that have not ended."""

    parts: deque[ChoiceDelta]
    open: set[str]
    error: TreadleError | None = None


class LLM:
    """One model, ready to answer. Calls from several threads are served together."""

    def __init__(self, model: str = "demo", **settings: Any) -> None:
        """`settings` are the fields of `config.settings`, as on the command line.

        Raises StartError when the model, a setting or the machine does not fit.
        """
        path = resolve_model(model)
        self.startup: list[Progress] = []
        resolved = engine_settings({"model": model, **settings})
        self._engine = build_engine(resolved, path, self.startup.append)
        self._limits = self._engine.ready()
        self._text = load_text(path, with_defaults=resolved.model.generation_config == "auto")
        self._ids = itertools.count()
        self._open: dict[str, tuple[Choice, _Call]] = {}
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="treadle-engine")
        self._thread_id = self._thread.submit(threading.get_ident).result()
        self._left_behind: deque[_Call] = deque()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop threads and free the memory; calls fail from then on, also those in progress."""
        self._closed = True
        self._thread.shutdown()
        self._engine.close()

    def get_default_sampling_params(self) -> SamplingParams:
        """What applies where a call gives none: the model's own defaults, else the class's."""
        chosen: dict[str, Any] = dict(self._text.sampling_defaults)
        return SamplingParams(**chosen)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        cache_salt: str = "",
    ) -> list[RequestOutput]:
        """Continue one prompt or each of several; answers in the order of the prompts.

        Raises a RequestError, and leaves nothing running, if any prompt or parameter is wrong.
        """
        texts = [_plain(prompt) for prompt in _as_list(prompts)]
        ids = [self._encode(text) if isinstance(text, str) else list(text) for text in texts]
        return self._answer(texts, ids, sampling_params, use_tqdm=use_tqdm, cache_salt=cache_salt)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        cache_salt: str = "",
        **template_kwargs: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, rendered with the model's chat template."""
        several = bool(messages) and not isinstance(messages[0], Mapping)
        conversations: Any = messages if several else [messages]
        texts = [self._render(messages, template_kwargs) for messages in conversations]
        ids = [self._encode(text, add_special=False) for text in texts]
        return self._answer(texts, ids, sampling_params, use_tqdm=use_tqdm, cache_salt=cache_salt)

    def generate_stream(
        self,
        prompt: str,
        sampling_params: SamplingParams | None = None,
        *,
        chat: Sequence[Message] | None = None,
    ) -> Iterator[StreamPiece]:
        """One answer as it comes: to `prompt`, or to a conversation. Closing it aborts."""
        if chat is None:
            ids = self._encode(prompt)
        else:
            ids = self._encode(self._render(chat, {}), add_special=False)
        params = sampling_params or self.get_default_sampling_params()
        if params.n != 1:
            raise InvalidRequest("a streamed answer is one; n must be 1", param="n")
        accepted = self._accept(ids, params)
        return self._stream(accepted)

    def _stream(self, accepted: Accepted) -> Iterator[StreamPiece]:
        num_tokens = 0
        for part in self._run([accepted], ""):
            num_tokens += len(part.token_ids)
            if part.text or part.finish_reason:
                yield StreamPiece(
                    part.text,
                    part.finish_reason,
                    len(accepted.prompt),
                    num_tokens,
                    part.cached_tokens,
                )

    def _answer(
        self,
        texts: Sequence[Any],
        ids: list[list[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        *,
        use_tqdm: bool,
        cache_salt: str,
    ) -> list[RequestOutput]:
        params = _one_each(sampling_params or self.get_default_sampling_params(), len(ids))
        requests = [self._accept(prompt, each) for prompt, each in zip(ids, params, strict=True)]
        answers: dict[int, ChoiceDelta] = {}
        total = sum(request.params.n for request in requests)
        with tqdm(total=total, unit="answer", disable=not use_tqdm) as bar:
            for part in self._run(requests, cache_salt):
                held = answers.setdefault(part.index, part)
                if held is not part:
                    held.append(part)
                bar.update(part.finish_reason is not None)
        return self._outputs(texts, requests, answers)

    def _outputs(
        self, texts: Sequence[Any], requests: list[Accepted], answers: dict[int, ChoiceDelta]
    ) -> list[RequestOutput]:
        outputs, first = [], 0
        for text, request in zip(texts, requests, strict=True):
            own = [answers[first + choice] for choice in range(request.params.n)]
            first += request.params.n
            with_logprobs = request.params.logprobs is not None
            outputs.append(
                RequestOutput(
                    request_id=str(next(self._ids)),
                    prompt=text if isinstance(text, str) else None,
                    prompt_token_ids=request.prompt,
                    outputs=[
                        completion_output(
                            answer, choice, self._text.tokenizer, with_logprobs=with_logprobs
                        )
                        for choice, answer in enumerate(own)
                    ],
                    finished=True,
                    num_cached_tokens=own[0].cached_tokens,
                )
            )
        return outputs

    def _run(self, requests: Sequence[Accepted], cache_salt: str) -> Iterator[ChoiceDelta]:
        """Send requests, and step the engine until their answers have ended; parts as they come.

        Other calls' parts that a step brings go to those calls, so calls from several threads, or
        several streams in one, share their steps.
        """
        generates = fan_out(requests, f"llm{next(self._ids)}", cache_salt)
        call = _Call(deque(), set())
        try:
            self._do(lambda: self._send(generates, call))
            while call.open or call.parts:
                self._do(lambda: None if call.parts else self._step())
                if call.error is not None:
                    raise call.error
                while call.parts:
                    yield call.parts.popleft()
        finally:
            if threading.get_ident() == self._thread_id:
                # The garbage collector closes a forgotten stream in the midst of a step.
                self._left_behind.append(call)
            elif not self._closed:
                self._do(lambda: self._abandon(call))

    def _do(self, work: Callable[[], None]) -> None:
        """Run in the engine's thread, to its end even if the caller is interrupted."""
        if self._closed:
            raise EngineError("this LLM is closed")
        self._thread.submit(work).result()

    def _send(self, generates: Sequence[Generate], call: _Call) -> None:
        for index, generate in enumerate(generates):
            choice = Choice(index, AnswerText(self._text.tokenizer, generate.params))
            self._open[generate.request_id] = choice, call
            call.open.add(generate.request_id)
            self._engine.handle(generate)

    def _step(self) -> None:
        for message in self._engine.step():
            match message:
                case Delta():
                    self._take(message)
                case Failed():
                    _, call = self._open.pop(message.request_id)
                    call.open.discard(message.request_id)
                    kind = RequestError if message.status < EngineError.status else EngineError
                    call.error = kind(message.message, param=message.param)
        while self._left_behind:
            self._abandon(self._left_behind.popleft())

    def _take(self, delta: Delta) -> None:
        if delta.request_id not in self._open:  # ended here first, by a stop string
            return
        choice, call = self._open[delta.request_id]
        part = choice.part(delta)
        call.parts.append(part)
        if part.finish_reason is not None:
            del self._open[delta.request_id]
            call.open.discard(delta.request_id)
            if delta.finish is None:
                self._engine.handle(Abort(delta.request_id))

    def _abandon(self, call: _Call) -> None:
        """End what a call leaves behind when it was interrupted or failed."""
        for request_id in call.open:
            del self._open[request_id]
            self._engine.handle(Abort(request_id))
        call.open.clear()
        while self._engine.has_work and not self._open:
            self._step()

    def _accept(self, prompt: list[int], params: SamplingParams) -> Accepted:
        return check(prompt, params, self._limits, self._text.tokenizer)

    def _encode(self, text: str, *, add_special: bool = True) -> list[int]:
        return self._text.tokenizer.encode(text, add_special=add_special)

    def _render(self, messages: Sequence[Message], kwargs: Mapping[str, Any]) -> str:
        return self._text.require_template().render([dict(m) for m in messages], **kwargs)


def _as_list(prompts: Any) -> list[Any]:
    """One prompt becomes a list of one."""
    one = isinstance(prompts, str | Mapping) or (prompts and isinstance(prompts[0], int))
    return [prompts] if one else list(prompts)


def _plain(prompt: Any) -> str | Sequence[int]:
    if isinstance(prompt, Mapping):
        inner = prompt.get("prompt_token_ids", prompt.get("prompt"))
        if inner is None:
            raise InvalidRequest("a prompt needs prompt or prompt_token_ids", param="prompt")
        prompt = inner
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence) and all(isinstance(token, int) for token in prompt):
        return prompt
    raise InvalidRequest("a prompt is a text or a list of token ids", param="prompt")


def _one_each(
    params: SamplingParams | Sequence[SamplingParams], count: int
) -> Sequence[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise InvalidRequest(
            f"there are {count} prompts and {len(params)} sampling parameters",
            param="sampling_params",
        )
    return params
