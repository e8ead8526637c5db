"""Which strategy is taken on each axis, and the parameters of those that have some."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chunking:
    """How a prompt is divided where it does not fit a step."""

    on: bool = True
    """Off: a prompt waits until all of it fits. One that no step could hold is divided all the
    same, alone in its steps."""
    most_tokens: int = 0
    """Of one request in one step; 0: no bound (vLLM's long_prefill_token_threshold)."""


@dataclasses.dataclass(frozen=True)
class PrefillFirst:
    """SGLang's bounds of a step that computes prompts."""

    chunk_tokens: int = 8192
    prefill_tokens: int = 16384
    mixed: bool = False
    """Whether decodes join it."""


@dataclasses.dataclass(frozen=True)
class TwoStage:
    """How TensorRT-LLM divides prompts among a step's tokens."""

    equal_progress: bool = False
    """A unit for each in turn, in place of all for the first."""
    unit_tokens: int = 64
    """What a chunk is a multiple of, unless it is the last."""


@dataclasses.dataclass(frozen=True)
class Stepwise:
    """What must be free for a request to start."""

    whole_prompt: bool = True
    """Blocks for all of it, even when the step computes less."""
    watermark: float = 0.0
    """And so large a share of all blocks beyond, unless nobody runs."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """How much of their answers requests are expected to take."""

    initial_ratio: float = 0.7
    least_ratio: float = 0.14
    """Of the initial one."""
    decay_steps: int = 600
    conservativeness: float = 1.0
    clip_tokens: int = 4096
    """An answer is not expected to be longer."""
    headroom_tokens: int = 20
    """Beyond what those who stay have generated, when somebody was retracted."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """A choice on each axis of scheduling. Which go together, `config.composition` says."""

    composition: str = "unified"
    admission: str = "stepwise"
    shortage: str = "preempt-newest"
    overlap_depth: int = 0
    chunking: Chunking = Chunking()
    prefill_first: PrefillFirst = PrefillFirst()
    two_stage: TwoStage = TwoStage()
    stepwise: Stepwise = Stepwise()
    estimate: Estimate = Estimate()
    displacement: int | None = None
    """By more than this a waiting request must be more important than running ones for them to give
    way to it; None: they never do."""
