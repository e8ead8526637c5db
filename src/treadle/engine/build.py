"""Putting an engine together: read the card, resolve the settings, load, allocate, record.

The only place that knows every part. Each phase is reported when it ends, with its seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from treadle.cache.block_tree import PartialReuse
from treadle.cache.fence import Fence
from treadle.cache.kv import Keeping, KVCache, build_prefix_cache
from treadle.cache.prefix import Window
from treadle.config.axis_states import absent_axes
from treadle.config.byte_size import binary
from treadle.config.conduct import displaces
from treadle.config.facts import KVGroupFacts, ModelFacts
from treadle.config.hardware import Hardware, detect_hardware
from treadle.config.resolve import Resolved, RuntimeValues, resolve
from treadle.config.settings import UNBOUNDED, Bounds, EngineSettings
from treadle.config.step_estimate import StepWidths
from treadle.engine.admission import Served
from treadle.engine.build_grammars import build_compiling
from treadle.engine.limits import Limits as ServerLimits
from treadle.engine.loop import Engine
from treadle.engine.priorities import Priorities
from treadle.engine.request import Request
from treadle.engine.trial import measure_step_bytes
from treadle.errors import StartError
from treadle.kernels.ops import Backend, KVSpec, Program, StepInputs, StepLimits
from treadle.models.card import ModelCard
from treadle.models.loader import Model, open_model
from treadle.runner.executor import Executor, InlineExecutor, ThreadExecutor
from treadle.runner.runner import Runner
from treadle.sampling.sampler import Sampler
from treadle.schedule.build import build_scheduler
from treadle.schedule.order.build import OrderParams, build_order
from treadle.schedule.order.in_batch import InBatchCheck
from treadle.schedule.order.waiting import WaitingOrder
from treadle.schedule.policy import (
    Chunking,
    Estimate,
    Policy,
    PrefillFirst,
    Stepwise,
    TwoStage,
)
from treadle.schedule.publication.build import Sharing
from treadle.schedule.scheduler import Limits, Scheduler
from treadle.wire.messages import Lengths, Progress

MAX_SCORES = 64
"""Prompt tokens scored in one step, enough for the matrix product over the vocabulary to be at its
best; each takes a row of logits, a megabyte where the vocabulary is largest."""

Report = Callable[[Progress], None]


@dataclasses.dataclass(frozen=True)
class Parts:
    """What an engine is put together from. Whoever measures gets hold of a part here, before it is
    an engine's own."""

    card: ModelCard
    resolved: Resolved
    backend: Backend
    program: Program
    runner: Runner
    scheduler: Scheduler[Request]
    kv: KVCache
    fence: Fence
    path: Path = Path()
    """The model, whose tokenizer grammars are made of."""
    bounds: Bounds = UNBOUNDED
    inputs: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What was resolved from, beside the settings: whoever has them can resolve again."""

    def engine(self) -> Engine:
        depth = self.resolved.schedule.overlap_depth
        served = Served(
            vocab_size=self.card.vocab_size,
            max_model_len=self.resolved.model.max_model_len,
            eos_token_ids=self.card.eos_ids,
            overlap_depth=depth,
            priorities=Priorities.of(self.resolved.order),
            limits=self._limits(),
            lengths=self._lengths(),
            resolved=self.resolved.flat(),
            inputs=self.inputs,
        )
        executor: Executor = ThreadExecutor(self.runner) if depth else InlineExecutor(self.runner)
        backend = self.resolved.runtime.grammar_backend
        asked = self.resolved.reasons["grammar_backend"].source not in ("default", "preset")
        compiling = build_compiling(backend, self.path, self.card, expected=asked)
        return Engine(served, self.scheduler, self.kv, self.fence, executor, compiling)

    def _lengths(self) -> Lengths:
        schedule, chunked = self.resolved.schedule, self.resolved.policy.chunked_prefill
        return Lengths(
            rule=schedule.length_rule,
            block_size=self.resolved.cache.block_size,
            step_tokens=None if chunked else schedule.max_num_batched_tokens,
            truncate=schedule.allow_auto_truncate,
        )

    def _limits(self) -> ServerLimits:
        counts = self.resolved.order.priorities == "count"
        queued = self.bounds.max_queued if counts else None
        return ServerLimits(queued, self.bounds.running_timeout)


class _Phases:
    """Times the phases of a start."""

    def __init__(self, report: Report) -> None:
        self._report = report

    @contextmanager
    def phase(self, name: str) -> Iterator[list[str]]:
        """The caller appends what is worth telling."""
        began = time.monotonic()
        details: list[str] = []
        yield details
        self._report(Progress(name, time.monotonic() - began, "; ".join(details)))


def build_engine(settings: EngineSettings, path: Path, report: Report) -> Engine:
    """Raises StartError when the setting, the machine or the model file does not fit."""
    return build_parts(settings, path, report).engine()


def build_parts(settings: EngineSettings, path: Path, report: Report) -> Parts:
    """All of an engine; raises as `build_engine` does."""
    try:
        return _build(settings, path, _Phases(report))
    except MemoryError:
        raise StartError(
            "there is not enough memory; lower max_model_len, max_num_seqs or"
            " max_num_batched_tokens"
        ) from None


def _build(settings: EngineSettings, path: Path, phases: _Phases) -> Parts:
    with contextlib.ExitStack() as opened:
        with phases.phase("configure") as details:
            file = opened.enter_context(open_model(path))
            card, machine = file.card, this_machine()
            facts = model_facts(card)
            resolved = resolve(settings, facts, machine)
            backend = build_backend(resolved.runtime)
            details.append(backend.description)
            details.extend(filter(None, [absent_axes(resolved)]))
        with phases.phase("load weights") as details:
            model = file.load(backend, positions=resolved.model.max_model_len)
            details.append(f"{card.weight_bytes / 2**20:.0f} MiB")
            details.extend(card.notes)
    with phases.phase("allocate KV") as details:
        tokens = resolved.schedule.max_num_batched_tokens
        step_bytes = measure_step_bytes(model, backend, *_bounds(resolved, card))
        details.append(f"a step of {tokens} tokens takes {binary(step_bytes)}")
        # Only how much KV there is depends on the measurement.
        facts = msgspec.structs.replace(facts, step_bytes=step_bytes)
        resolved = resolve(settings, facts, machine)
        parts = _assemble(resolved, model, backend)
        inputs = {"model": facts, "machine": machine}
        parts = dataclasses.replace(
            parts, inputs=msgspec.to_builtins(inputs), bounds=settings.bounds, path=path
        )
        size = resolved.cache.block_size
        capacity = max(count * size for count in resolved.cache.num_blocks)
        details.append(f"KV for {capacity} tokens in blocks of {size}")
        details.append(resolved.reasons["kv_budget_bytes"].sentence)
    return parts


def model_facts(card: ModelCard) -> ModelFacts:
    return ModelFacts(
        name=card.name,
        architecture=card.architecture,
        weight_type=card.weight_type.value,
        quantised=card.weight_type.quantised,
        experts=card.experts,
        speculators=card.speculators,
        max_positions=card.max_positions,
        kv_groups=tuple(
            KVGroupFacts(
                values_per_token=2 * group.layers * group.kv_heads * group.head_dim,
                window=group.window,
                kv_heads=group.kv_heads,
            )
            for group in card.kv_groups
        ),
        weights_bytes=card.weight_bytes,
        widths=StepWidths(hidden=card.hidden, ffn=card.ffn, vocab=card.vocab_size),
    )


def this_machine() -> Hardware:
    """With the variants of the native kernels that it runs, if they are built here."""
    try:
        from treadle.kernels.native.backend import available_variants
    except ImportError:
        return detect_hardware()
    return detect_hardware(variants=available_variants())


def build_backend(runtime: RuntimeValues) -> Backend:
    """Imports only the backend that is used."""
    if runtime.backend == "torch":
        try:
            from treadle.kernels.torch.backend import TorchBackend
        except ModuleNotFoundError:
            raise StartError("the torch backend needs PyTorch, which is not installed") from None
        return TorchBackend(threads=runtime.threads)
    from treadle.kernels.native.backend import NativeBackend

    return NativeBackend(threads=runtime.threads, isa=runtime.isa)


def _bounds(resolved: Resolved, card: ModelCard) -> tuple[tuple[KVSpec, ...], StepLimits]:
    """What a step's program is recorded for."""
    cache, schedule = resolved.cache, resolved.schedule
    specs = card.kv_specs(block_size=cache.block_size, type=cache.kv_dtype)
    row_blocks = -(-resolved.model.max_model_len // cache.block_size)
    limits = StepLimits(
        tokens=schedule.max_num_batched_tokens,
        rows=schedule.max_num_seqs,
        table_blocks=tuple(row_blocks for _ in specs),
        extra_logits=min(MAX_SCORES, schedule.max_num_batched_tokens),
        context_form=resolved.runtime.context_form,
        row_tokens=row_blocks * cache.block_size,
    )
    return specs, limits


def _assemble(resolved: Resolved, model: Model, backend: Backend) -> Parts:
    card, cache, schedule = model.card, resolved.cache, resolved.schedule
    specs, limits = _bounds(resolved, card)
    inputs = StepInputs(limits)
    pools = [
        backend.kv_pool(spec, count) for spec, count in zip(specs, cache.num_blocks, strict=True)
    ]
    program = model.record(
        backend.recorder(inputs, pools), write_and_attend=resolved.runtime.write_and_attend
    )
    sampler = Sampler(backend.sampling, schedule.max_num_seqs, card.vocab_size, card.eos_ids)
    runner = Runner(backend, program, inputs, pools, sampler)
    kv = _kv_cache(resolved, card)
    fence = Fence()
    bounds = Limits(limits.rows, limits.tokens, limits.extra_logits)
    sharing = Sharing(resolved.cache.publication, resolved.cache.prefix_wait_tokens)
    waiting, policy = _waiting(resolved), _policy(resolved)
    scheduler = build_scheduler(bounds, waiting, kv, fence, policy, sharing=sharing)
    return Parts(card, resolved, backend, program, runner, scheduler, kv, fence)


def _policy(resolved: Resolved) -> Policy:
    values, schedule, order = resolved.policy, resolved.schedule, resolved.order
    return Policy(
        composition=values.composition,
        admission=values.admission,
        shortage=values.shortage,
        overlap_depth=schedule.overlap_depth,
        chunking=Chunking(values.chunked_prefill, values.long_prefill_token_threshold),
        prefill_first=PrefillFirst(
            schedule.max_num_batched_tokens, values.max_prefill_tokens, values.mixed_chunk
        ),
        two_stage=TwoStage(values.chunk_policy == "equal-progress", values.chunk_unit_tokens),
        stepwise=Stepwise(values.reserve_full_prompt, values.watermark),
        estimate=Estimate(conservativeness=values.schedule_conservativeness),
        displacement=order.priority_preemption_threshold if displaces(order, values) else None,
    )


def _waiting(resolved: Resolved) -> WaitingOrder[Request]:
    order = resolved.order
    check = InBatchCheck(order.in_batch_check_threshold, order.in_batch_share_threshold)
    return build_order(order.order, OrderParams(check, order.sort_limit, order.order_seed))


def _kv_cache(resolved: Resolved, card: ModelCard) -> KVCache:
    cache = resolved.cache
    windows = [
        # A window that holds every request whole slides over nothing.
        None
        if group.window is None or group.window >= resolved.model.max_model_len
        else Window(group.window, resolved.schedule.max_num_batched_tokens)
        for group in card.kv_groups
    ]
    partial = PartialReuse(cache.partial_reuse, cache.copy_on_partial_reuse)
    return KVCache(
        [
            build_prefix_cache(
                cache.prefix_cache,
                count,
                cache.block_size,
                window,
                keeping=Keeping(cache.eviction_policy, partial, num_soft),
            )
            for count, num_soft, window in zip(
                cache.num_blocks, cache.num_soft_blocks, windows, strict=True
            )
        ]
    )
