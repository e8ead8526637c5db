"""What the server at an address is: its model, what prompts it takes, and units to build them of.

Asks once, before anything is measured. Token ids are preferred; a server that takes none gets texts
whose tokens are counted by its own /tokenize, or by a tokenizer that the user names.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from treadle.bench.connection import Connections, reason_of
from treadle.errors import RequestError, StartError

POOL_SEED = 0
"""The pool is the same for every run, so that a run's seed alone decides its prompts."""

NUM_WORDS = 4000
NUM_TRIED = 600
"""Words tried for being one token each; a vocabulary of 32,000 has about every third."""
LEAST_POOL = 16


class Counter(Protocol):
    """Text → token ids, without special tokens or with those that begin every prompt."""

    async def __call__(self, text: str, *, special: bool) -> list[int]: ...


class Target(msgspec.Struct, kw_only=True):
    """A server and how to ask it. Exactly one pool is not empty."""

    url: str
    model: str
    ids: Sequence[int] = ()
    words: Sequence[str] = ()
    """With their leading space, each one token wherever it stands."""
    num_special: int = 0
    """Tokens that the server puts before a text of its own accord."""
    counter: Counter | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _Answer(msgspec.Struct):
    usage: _Usage


async def find_target(
    connections: Connections, model: str | None, tokenizer: Path | None
) -> Target:
    """Raises StartError when the server cannot be asked, or no prompt of exact length be built."""
    try:
        return await _find(connections, model, tokenizer)
    except (OSError, msgspec.DecodeError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else error
        raise StartError(f"{connections.address.url}: {reason}") from None


async def _find(connections: Connections, model: str | None, tokenizer: Path | None) -> Target:
    url = connections.address.url
    name = model or await _first_model(connections)
    counter = await _counter(connections, name, tokenizer)
    if counter is None:
        raise StartError(
            f"{url} has no /tokenize to count tokens with: name the model's tokenizer by"
            " --tokenizer, a .gguf file or a folder with tokenizer.json"
        )
    ids = await _ordinary_ids(counter)
    if await _takes_ids(connections, name, ids[:8]):
        return Target(url=url, model=name, ids=ids, counter=counter)
    words = await _whole_words(counter)
    special = await counter(words[0], special=True)
    return Target(url=url, model=name, words=words, num_special=len(special) - 1, counter=counter)


async def _first_model(connections: Connections) -> str:
    status, body = await connections.fetch("/v1/models")
    if status != 200:
        text = body[:200].decode(errors="replace")
        raise StartError(f"{connections.address.url}/v1/models: status {status}: {text}")
    models = msgspec.json.decode(body, type=_Models).data
    if not models:
        raise StartError(f"{connections.address.url}/v1/models: the server has no model")
    return models[0].id


async def _counter(connections: Connections, model: str, tokenizer: Path | None) -> Counter | None:
    if tokenizer is not None:
        return _LocalCounter(tokenizer)
    for field in ("prompt", "content"):  # vLLM's and SGLang's name, and llama.cpp's
        counter = _ServerCounter(connections, model, field)
        try:
            if await counter("one two three", special=False):
                return counter
        except StartError:  # not there, or not under this name
            continue
    return None


class _ServerCounter:
    def __init__(self, connections: Connections, model: str, field: str) -> None:
        self._connections = connections
        self._model = model
        self._field = field

    async def __call__(self, text: str, *, special: bool) -> list[int]:
        body = {
            "model": self._model,
            self._field: text,
            "add_special_tokens": special,
            "add_special": special,
        }
        status, answer = await self._connections.fetch("/tokenize", msgspec.json.encode(body))
        if status in (401, 403):
            raise RequestError(f"{self._connections.address.url}/tokenize: status {status}")
        if status != 200:
            raise StartError(f"{self._connections.address.url}/tokenize: status {status}")
        return msgspec.json.decode(answer, type=_Tokens).tokens


class _LocalCounter:
    """The tokenizer of a model's file or folder, in this process."""

    def __init__(self, path: Path) -> None:
        from treadle.text.load import load_text

        self._tokenizer = load_text(path, with_defaults=False).tokenizer

    async def __call__(self, text: str, *, special: bool) -> list[int]:
        return self._tokenizer.encode(text, add_special=special)

    def ordinary_ids(self) -> list[int]:
        size = self._tokenizer.vocab_size
        return [token for token in range(size) if not self._tokenizer.is_special(token)]


async def _ordinary_ids(counter: Counter) -> list[int]:
    """Ids that plain text can have: the vocabulary but its special tokens where it is at hand, else
    what a long text of random letters is made of."""
    if isinstance(counter, _LocalCounter):
        return counter.ordinary_ids()
    ids = sorted(set(await counter("".join(_random_words(NUM_WORDS)), special=False)))
    if len(ids) < LEAST_POOL:
        raise StartError(f"only {len(ids)} different tokens were found in random text")
    return ids


async def _takes_ids(connections: Connections, model: str, ids: Sequence[int]) -> bool:
    """Whether a prompt of token ids is answered, and counted as those."""
    body: dict[str, Any] = {"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0}
    status, answer = await connections.fetch("/v1/completions", msgspec.json.encode(body))
    if status in (401, 403, 404):
        text = answer[:200].decode(errors="replace")
        raise StartError(f"{connections.address.url}/v1/completions: status {status}: {text}")
    if status != 200:
        return False
    return msgspec.json.decode(answer, type=_Answer).usage.prompt_tokens == len(ids)


async def _whole_words(counter: Counter) -> list[str]:
    """Words that are one token each after a space."""
    tried = dict.fromkeys(_random_words(NUM_TRIED))
    words = [word for word in tried if len(await counter(word, special=False)) == 1]
    if len(words) < LEAST_POOL:
        raise StartError(f"only {len(words)} words of one token each were found")
    return words


def _random_words(count: int) -> list[str]:
    rng = random.Random(POOL_SEED)  # noqa: S311
    letters = "eeeettaaooiinnsshhrrddlluccmmwfgypbvkxjqz"
    return [" " + "".join(rng.choices(letters, k=rng.randint(1, 4))) for _ in range(count)]
