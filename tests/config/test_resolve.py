"""Resolution is pure: every value has a reason, and changes with the inputs the reason names."""

from __future__ import annotations

import msgspec
import pytest

from treadle.config.hardware import Hardware
from treadle.config.resolve import ModelFacts, Resolved, resolve
from treadle.config.settings import (
    CacheSettings,
    EngineSettings,
    ModelSettings,
    RuntimeSettings,
    ScheduleSettings,
)
from treadle.errors import StartError

FACTS = ModelFacts(
    max_positions=8192,
    kv_values_per_token=2 * 30 * 3 * 64,
    weights_bytes=98 * 2**20,
    activation_bytes_per_token=40_000,
)
MACHINE = Hardware(
    cpu="any",
    cores=2,
    memory_bytes=24 * 2**30,
    available_bytes=23 * 2**30,
    available_from="free memory",
)


def test_every_value_has_a_reason() -> None:
    resolved = resolve(EngineSettings(), FACTS, MACHINE)
    names = {field.name for field in msgspec.structs.fields(Resolved)} - {"reasons"}
    assert set(resolved.reasons) == names
    assert all(reason.sentence for reason in resolved.reasons.values())


def test_what_is_asked_for_holds() -> None:
    asked = EngineSettings(
        model=ModelSettings(max_model_len=1000),
        cache=CacheSettings(
            prefix_cache="hashed", block_size=32, kv_dtype="f32", kv_cache_memory_bytes=10**7
        ),
        schedule=ScheduleSettings(max_num_seqs=3, max_num_batched_tokens=40, overlap_depth=1),
        runtime=RuntimeSettings(backend="torch", threads=7),
    )
    resolved = resolve(asked, FACTS, MACHINE)
    assert resolved.max_model_len == 1000
    assert (resolved.prefix_cache, resolved.block_size, resolved.kv_dtype) == ("hashed", 32, "f32")
    assert resolved.num_blocks == 10**7 // (11520 * 4 * 32)
    assert (resolved.max_num_seqs, resolved.max_num_batched_tokens) == (3, 40)
    assert (resolved.overlap_depth, resolved.backend, resolved.threads) == (1, "torch", 7)
    assert {reason.source for reason in resolved.reasons.values()} == {"argument"}


def test_kv_is_capped_by_what_can_be_used() -> None:
    settings = EngineSettings(
        model=ModelSettings(max_model_len=100), schedule=ScheduleSettings(max_num_seqs=2)
    )
    resolved = resolve(settings, FACTS, MACHINE)
    assert resolved.kv_capacity_tokens == 208, "2 × 100, in blocks of 16"
    assert resolved.reasons["num_blocks"].source == "limit"


def test_kv_takes_half_of_what_is_left() -> None:
    small = msgspec.structs.replace(MACHINE, available_bytes=300 * 2**20)
    resolved = resolve(EngineSettings(), FACTS, small)
    assert resolved.num_blocks == 101 * 2**20 // (11520 * 2 * 16)
    assert resolved.reasons["num_blocks"].source == "hardware"
    assert "202 MiB" in resolved.reasons["num_blocks"].sentence


def test_what_cannot_hold_is_one_sentence() -> None:
    def start(settings: EngineSettings, machine: Hardware = MACHINE) -> None:
        resolve(settings, FACTS, machine)

    with pytest.raises(StartError, match="max_model_len is 9000; the model's window is 8192"):
        start(EngineSettings(model=ModelSettings(max_model_len=9000)))
    with pytest.raises(StartError, match="kv_cache_memory_bytes is 1000"):
        start(EngineSettings(cache=CacheSettings(kv_cache_memory_bytes=1000)))
    with pytest.raises(StartError, match="max_num_batched_tokens is 5; max_num_seqs is 8"):
        start(EngineSettings(schedule=ScheduleSettings(max_num_seqs=8, max_num_batched_tokens=5)))
    with pytest.raises(StartError, match="nothing is left for KV"):
        start(EngineSettings(), msgspec.structs.replace(MACHINE, available_bytes=98 * 2**20))
