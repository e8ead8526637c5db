"""Which steps replay something captured, and what: one rule for each engine, and our own.

A rule answers for a step's shape alone, in one sentence that says why; it captures nothing.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import msgspec

from treadle.config.capture import (
    TRTLLM_MOST_REQUESTS,
    sglang_decode_sizes,
    sglang_prefill_sizes,
    trtllm_sizes,
    vllm_sizes,
)
from treadle.errors import StartError

ReplayKind = Literal["full", "piecewise", "breakable", "program", "eager"]
"""full: the whole step is one graph; piecewise and breakable: graphs between which attention runs;
program: a recorded step that runs any shape; eager: nothing is replayed."""

VllmMode = Literal["FULL_AND_PIECEWISE", "PIECEWISE", "FULL_DECODE_ONLY", "FULL", "NONE"]


class Step(NamedTuple):
    """The shape of a step: rows that decode, each with its drafts, and prompt tokens by row."""

    decode_rows: int = 0
    prefills: tuple[int, ...] = ()
    draft_tokens: int = 0

    @property
    def query_lengths(self) -> tuple[int, ...]:
        return (1 + self.draft_tokens,) * self.decode_rows + self.prefills

    @property
    def tokens(self) -> int:
        return sum(self.query_lengths)


class Replay(NamedTuple):
    """What a step does."""

    kind: ReplayKind
    size: int
    """Of what runs, padding included: requests or tokens, as the rule counts."""
    padded_by: int
    why: str


class CaptureRule(Protocol):
    def which(self, step: Step) -> Replay: ...


_MOST_DIGITS = 7

_WORK = re.compile(r"\s*(decode|prefill)\s+([0-9]+(?:\s*,\s*[0-9]+)*)\s*")


def parse_step(text: str) -> Step:
    """A step in words: "decode 40", "prefill 512", "prefill 100,28", "decode 40 prefill 100"."""
    decode_rows, at = 0, 0
    if any(len(number) > _MOST_DIGITS for number in re.findall("[0-9]+", text)):
        raise StartError(f"the step is {text!r}; it has more tokens than any engine computes")
    prefills: tuple[int, ...] = ()
    for found in _WORK.finditer(text):
        if found.start() != at:
            break
        at = found.end()
        numbers = tuple(int(number) for number in found[2].split(","))
        if found[1] == "prefill":
            prefills += numbers
        else:
            decode_rows += sum(numbers)
    step = Step(decode_rows, prefills)
    if at != len(text) or not step.tokens or 0 in prefills:
        raise StartError(
            f"the step is {text!r}; write 'decode 40', 'prefill 512' or 'decode 40 prefill 100,28'"
        )
    return step


class VllmCapture(msgspec.Struct, frozen=True, kw_only=True):
    """vLLM pads a step's tokens to a captured number; decode alone replays whole."""

    max_num_seqs: int
    max_num_batched_tokens: int
    mode: VllmMode = "FULL_AND_PIECEWISE"
    draft_tokens: int = 0
    sizes: tuple[int, ...] | None = None
    """The user's list; None: chosen."""
    cascade: bool = False
    """All rows share blocks, and attention takes them once: never in a whole graph."""

    def captured(self) -> tuple[int, ...]:
        """Token counts with graphs between attention."""
        if self.mode == "NONE":
            return ()
        return vllm_sizes(
            self.max_num_seqs,
            self.max_num_batched_tokens,
            draft_tokens=self.draft_tokens,
            asked=self.sizes,
        )

    def captured_whole(self) -> tuple[int, ...]:
        """Of them, those of decode steps that are one graph."""
        if self.mode in ("NONE", "PIECEWISE"):
            return ()
        most = self.max_num_seqs * (1 + self.draft_tokens)
        return tuple(size for size in self.captured() if self.mode == "FULL" or size <= most)

    def which(self, step: Step) -> Replay:
        tokens, sizes = step.tokens, self.captured()
        if not sizes:
            return _eager(tokens, "the mode is NONE: nothing is captured")
        padded = _next(sizes, tokens)
        if padded is None:
            return _eager(tokens, f"{_tokens(tokens)} are more than the largest size, {sizes[-1]}")
        uniform = set(step.query_lengths) == {1 + self.draft_tokens}
        whole = (uniform or self.mode == "FULL") and not self.cascade
        pads = f"{_tokens(tokens)} pad to {padded}" if padded > tokens else f"{padded} is captured"
        if whole and padded in self.captured_whole():
            return Replay("full", padded, padded - tokens, f"every row decodes, {pads}")
        if self.mode not in ("FULL_AND_PIECEWISE", "PIECEWISE"):
            return _eager(tokens, f"{self.mode} has no graph for steps that also prefill")
        reason = self._why_not_whole(padded, uniform=uniform)
        return Replay("piecewise", padded, padded - tokens, f"{reason}, {pads}")

    def _why_not_whole(self, padded: int, *, uniform: bool) -> str:
        if self.cascade:
            return "attention takes what all rows share once"
        if self.mode == "PIECEWISE":
            return "nothing is captured whole"
        if uniform:
            return f"{padded} are more than the {self.max_num_seqs} rows that may run"
        return "rows have different numbers of tokens"


class SGLangCapture(msgspec.Struct, frozen=True, kw_only=True):
    """SGLang captures decode whole by requests, and prefill around attention by tokens."""

    decode_max_rows: int
    prefill_max_tokens: int
    """0: prefill is not captured."""
    request_slots: int | None = None
    speculative: bool = False
    padding: bool = True
    multiple_of: int = 1
    hindrance: str | None = None
    """What keeps a step from being replayed: "input embeddings", "an adapter", ..."""

    def decode_sizes(self) -> tuple[int, ...]:
        return sglang_decode_sizes(
            self.decode_max_rows,
            speculative=self.speculative,
            padding=self.padding,
            request_slots=self.request_slots,
            multiple_of=self.multiple_of,
        )

    def prefill_sizes(self) -> tuple[int, ...]:
        return sglang_prefill_sizes(self.prefill_max_tokens)

    def which(self, step: Step) -> Replay:
        if step.prefills:
            kind: ReplayKind = "breakable"
            sizes, amount, unit = self.prefill_sizes(), step.tokens, "token"
        else:
            kind, sizes, amount, unit = "full", self.decode_sizes(), step.decode_rows, "request"
        if self.hindrance:
            return _eager(amount, f"the step has {self.hindrance}")
        if not sizes:
            return _eager(amount, f"no {'prefill' if step.prefills else 'decode'} is captured")
        padded = _next(sizes, amount)
        counted = f"{amount} {unit}{'s' if amount > 1 else ''}"
        if padded is None:
            return _eager(amount, f"{counted}: above the largest size, {sizes[-1]}")
        fits = f"pad to {padded}" if padded > amount else "are captured"
        return Replay(kind, padded, padded - amount, f"{counted} {fits}")


class TrtllmCapture(msgspec.Struct, frozen=True, kw_only=True):
    """TensorRT-LLM replays batches that only generate, of exactly a captured number of requests
    unless padding is on; padding takes blocks for its dummies."""

    largest: int = TRTLLM_MOST_REQUESTS
    padding: bool = False
    max_batch_size: int = 2048
    free_blocks: bool = True
    """Whether there is a block for each request that padding adds."""

    def sizes(self) -> tuple[int, ...]:
        return trtllm_sizes(self.largest, padding=self.padding)

    def which(self, step: Step) -> Replay:
        rows, sizes = step.decode_rows, self.sizes()
        if step.prefills:
            return _eager(step.tokens, "a batch with a prompt in it is never replayed")
        if rows in sizes:
            return Replay("full", rows, 0, f"{rows} is a captured size")
        if not self.padding:
            return _eager(rows, f"{rows} is not a captured size and padding is off")
        return self._padded(rows, _next(sizes, rows))

    def _padded(self, rows: int, padded: int | None) -> Replay:
        if padded is None:
            return _eager(rows, f"{rows} requests: above the largest size, {self.largest}")
        if padded > self.max_batch_size:
            return _eager(rows, f"{padded} requests are above max_batch_size {self.max_batch_size}")
        if not self.free_blocks:
            return _eager(rows, f"no blocks are free for {padded - rows} dummy requests")
        return Replay("full", padded, padded - rows, f"{rows} requests pad to {padded}")


class ProgramReplay(msgspec.Struct, frozen=True):
    """Our CPU backend records a step once and runs it for any shape within its limits."""

    def which(self, step: Step) -> Replay:
        return Replay(
            "program", step.tokens, 0, "the recorded step program runs any shape, without padding"
        )


def _eager(amount: int, why: str) -> Replay:
    return Replay("eager", amount, 0, why)


def _next(sizes: Sequence[int], amount: int) -> int | None:
    """The smallest size that holds the amount."""
    at = bisect.bisect_left(sizes, amount)
    return sizes[at] if at < len(sizes) else None


def _tokens(count: int) -> str:
    return f"{count} token{'' if count == 1 else 's'}"
