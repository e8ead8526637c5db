"""The tables are those of the engines' sources, and their rules give the values stated there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.config.setups import LAPTOP, SMALL, WINDOWED, view
from tests.config.worked_examples import example
from treadle.config.axes import AXES, in_force
from treadle.config.composition import REQUIREMENTS, check_composition
from treadle.config.device import Device, described
from treadle.config.facts import KVGroupFacts, ModelFacts
from treadle.config.presets import PRESETS, sglang, sglang_rules, trtllm_rules, vllm_rules
from treadle.config.resolve import resolve
from treadle.config.settings import (
    CacheSettings,
    EngineSettings,
    PrefixCacheKind,
    PresetName,
    ScheduleSettings,
    Usage,
)
from treadle.config.view import View, this_device
from treadle.errors import StartError

STATED: Any = json.loads((Path(__file__).parent / "data" / "presets.json").read_text())
GIB = 2**30
LATENT = msgspec.structs.replace(SMALL, attention="mla")
BLIND = msgspec.structs.replace(SMALL, attention="none")

ENGINES: tuple[PresetName, ...] = ("vllm", "sglang", "trtllm")


def on(device: Device, model: ModelFacts = SMALL, usage: Usage = "server") -> View:
    return View(EngineSettings(usage=usage), model, LAPTOP, device)


def gpu(gib: float, capability: tuple[int, int] = (9, 0), name: str = "some card") -> Device:
    return Device(name, "cuda", int(gib * GIB), capability)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_knob_is_there_as_its_source_states_it(engine: PresetName) -> None:
    ours = {
        group: {
            knob.name: {
                "value": knob.value,
                "unit": knob.unit,
                "resolved_by": knob.resolved_by,
                "condition": knob.condition,
            }
            for knob in knobs
        }
        for group, knobs in PRESETS[engine].groups.items()
    }
    assert ours == STATED["engines"][engine]


def test_there_are_270() -> None:
    assert [len(PRESETS[engine].knobs()) for engine in ENGINES] == [83, 118, 69]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_a_choice_on_every_axis_and_composes(preset: PresetName) -> None:
    axes = PRESETS[preset].axes
    assert axes.keys() == AXES.keys()
    assert all(choice in AXES[name].choices for name, choice in axes.items())
    check_composition(axes)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_setting_has_two_knobs(preset: PresetName) -> None:
    settings = [k.here.setting for k in PRESETS[preset].knobs().values() if k.here.setting]
    assert len(settings) == len(set(settings))


@pytest.mark.parametrize("rule", REQUIREMENTS)
def test_what_does_not_compose_is_one_sentence(rule: Any) -> None:
    wrong = next(c for c in AXES[rule.other].choices if c not in rule.needed)
    with pytest.raises(StartError, match=f"{rule.choice} needs .*, not {wrong}|{wrong} needs"):
        check_composition({rule.axis: rule.choice, rule.other: wrong})
    check_composition({rule.axis: rule.choice, rule.other: rule.needed[0]})


@pytest.mark.parametrize("index", ["radix", "hashed", "none"])
def test_what_runs_composes(index: PrefixCacheKind) -> None:
    settings = EngineSettings(cache=CacheSettings(prefix_cache=index))
    choices = in_force(resolve(settings, SMALL, LAPTOP).flat())
    check_composition(choices)
    assert all(choice in AXES[name].here for name, choice in choices.items())


def stated(engine: str, group: str, knob: str) -> Any:
    return STATED["engines"][engine][group][knob]["value"]


def test_vllm_batches_by_memory_and_entry_point() -> None:
    tokens = stated("vllm", "scheduler", "max_num_batched_tokens")
    requests = stated("vllm", "scheduler", "max_num_seqs")
    large, a100, small = gpu(70), described("a100-80gb"), gpu(69.9)
    unknown = described("unknown-gpu")
    for device, key in (
        (large, "ge_70GiB_not_A100"),
        (small, "other"),
        (a100, "other"),
        (unknown, "other"),
    ):
        server, offline = on(device), on(device, usage="offline")
        assert vllm_rules.max_num_batched_tokens(server).value == tokens[f"api_server_{key}"]
        assert vllm_rules.max_num_batched_tokens(offline).value == tokens[f"offline_LLM_{key}"]
        assert vllm_rules.max_num_seqs(server).value == requests[key]


def test_vllm_never_runs_more_requests_than_a_step_has_tokens() -> None:
    asked = EngineSettings(schedule=ScheduleSettings(max_num_batched_tokens=100))
    assert vllm_rules.max_num_seqs(View(asked, SMALL, LAPTOP, gpu(80))).value == 100


@pytest.mark.parametrize(
    ("key", "gib"),
    [("lt_20GiB", 19.9), ("lt_35GiB", 34.9), ("lt_60GiB", 59.9), ("lt_90GiB", 89.9),
     ("lt_160GiB", 159.9), ("ge_160GiB", 160)],
)  # fmt: skip
def test_sglang_goes_by_memory(key: str, gib: float) -> None:
    chunks = stated("sglang", "scheduler", "chunked_prefill_size")
    rows = stated("sglang", "graphs", "decode_max_bs")
    assert sglang_rules.chunked_prefill_size(on(gpu(gib))).value == chunks[key]
    named = next((rows[k] for k in (key, f"{key}_tp_lt_4") if k in rows), rows["lt_160GiB_tp_lt_4"])
    assert sglang_rules.decode_max_bs(on(gpu(gib))).value == named


def test_sglang_on_a_device_that_cannot_be_read() -> None:
    unknown = on(described("unknown-gpu"))
    assert sglang_rules.mem_fraction_static(unknown).value == 0.88
    assert sglang_rules.chunked_prefill_size(unknown).value == 4096
    assert sglang_rules.decode_max_bs(unknown).value == 160


@pytest.mark.parametrize(
    ("capability", "model", "vllm", "sglang"),
    [
        ((9, 0), SMALL, "FLASH_ATTN", "fa3"),
        ((10, 0), SMALL, "FLASHINFER", "trtllm_mha"),
        ((8, 0), SMALL, "FLASH_ATTN", "flashinfer"),
        ((9, 0), LATENT, "FLASH_ATTN_MLA", "fa3"),
        ((10, 0), LATENT, "FLASHINFER_MLA", "flashinfer"),
        ((8, 0), LATENT, "TRITON_MLA", "triton"),
    ],
)
def test_attention_backends_go_by_generation(
    capability: tuple[int, int], model: ModelFacts, vllm: str, sglang: str
) -> None:
    seen = on(gpu(80, capability), model)
    chosen = vllm_rules.attention_backend(seen)
    assert chosen is not None
    assert chosen.value == vllm
    family = "mla" if model is LATENT else "non_mla"
    listed = stated("vllm", "attention", "backend")[
        f"{family}_{'sm100' if capability == (10, 0) else 'other'}"
    ]
    assert vllm in listed
    assert sglang_rules.attention_backend(seen).value == sglang


def test_backends_force_pages() -> None:
    assert vllm_rules.page_size("FLASHMLA").value == 64
    assert vllm_rules.page_size("FLASH_ATTN").value == 16
    assert sglang_rules.forced_page_size("flashmla").value == 64
    assert sglang_rules.forced_page_size("trtllm_mla").value in (32, 64)
    assert sglang_rules.forced_page_size("fa3").value == 1
    assert trtllm_rules.tokens_per_block("FlashMLA").value == 64
    assert trtllm_rules.tokens_per_block("VANILLA", 4000).value == 4000
    assert trtllm_rules.tokens_per_block("TRTLLM").value == 32


def test_what_turns_prefix_caching_off() -> None:
    h100, a100 = described("h100-80gb"), described("a100-80gb")
    assert vllm_rules.enable_prefix_caching(on(h100, BLIND)).value is False
    assert sglang_rules.disable_radix_cache(on(h100, BLIND)).value is True
    assert trtllm_rules.block_reuse(on(h100), "FLASHINFER").value is False
    assert trtllm_rules.enable_block_reuse(on(h100, LATENT)).value is True
    assert trtllm_rules.enable_block_reuse(on(a100, LATENT)).value is False
    chosen = resolve(EngineSettings(preset="trtllm"), LATENT, LAPTOP, a100)
    assert chosen.cache.prefix_cache == "none"


def test_only_vllm_drafts_because_a_checkpoint_says_so() -> None:
    drafting = on(gpu(80), msgspec.structs.replace(SMALL, speculators="eagle3"))
    vllm = PRESETS["vllm"].knobs()["speculative.speculative_config"].at(drafting)
    assert vllm is not None
    assert vllm.value == "eagle3"
    assert vllm_rules.speculative_config(on(gpu(80))).value is None
    for engine, name in (("sglang", "speculative_algorithm"), ("trtllm", "speculative_config")):
        knob = PRESETS[engine].knobs()[f"speculative.{name}"].at(drafting)
        assert knob is not None
        assert knob.value is None


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("device", ["this machine", "h100-80gb", "a100-80gb", "unknown-gpu"])
def test_every_knob_has_a_value_and_a_state_everywhere(engine: PresetName, device: str) -> None:
    where = this_device(LAPTOP) if device == "this machine" else described(device)
    settled = view()
    settled.settled.max_model_len, settled.settled.kv_dtype = 8192, "f16"
    seen = View(EngineSettings(), WINDOWED, LAPTOP, where, settled.settled)
    for knob in PRESETS[engine].knobs().values():
        ruled = knob.at(seen)
        assert ruled is None or (ruled.why and not callable(ruled.value))
        state = knob.here.state_on(where)
        assert (state == "not applicable") == (
            knob.here.state == "not applicable" or (knob.here.needs_cuda and where.kind == "cpu")
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_preset_sets_what_treadle_has_and_arguments_go_before_it(engine: PresetName) -> None:
    common = STATED["common_view"]
    chosen = resolve(EngineSettings(preset=engine), SMALL, LAPTOP)
    assert chosen.cache.block_size == common["block_size_tokens"][engine]
    assert chosen.schedule.overlap_depth == int(common["overlap"][engine])
    asked = EngineSettings(
        preset=engine,
        cache=CacheSettings(
            prefix_cache="none",
            block_size=32 if engine != "trtllm" else 16,
            kv_memory_rule="of-free",
            kv_memory_fraction=0.1,
        ),
        schedule=ScheduleSettings(max_num_seqs=5, max_num_batched_tokens=50, overlap_depth=0),
    )
    forced = resolve(asked, SMALL, LAPTOP)
    for name in (
        *("prefix_cache", "block_size", "kv_memory_rule", "kv_memory_fraction"),
        *("max_num_seqs", "max_num_batched_tokens", "overlap_depth"),
    ):
        assert chosen.reasons[name].source in ("preset", "data structure"), name
        assert forced.reasons[name].source == "argument", name


def test_a_rule_brings_its_own_fraction() -> None:
    fractions = {
        rule: resolve(
            EngineSettings(cache=CacheSettings(kv_memory_rule=rule)), SMALL, LAPTOP
        ).cache.kv_memory_fraction
        for rule in ("of-free", "of-total", "reserve", "after-peak")
    }
    assert fractions == {"of-free": 0.5, "of-total": 0.92, "reserve": 0.833, "after-peak": 0.9}


def test_memory_that_is_not_free_is_refused_by_the_rule_that_wants_it() -> None:
    busy = msgspec.structs.replace(LAPTOP, available_bytes=10 * GIB)
    with pytest.raises(StartError, match=r"0\.92 asks for .* are free"):
        resolve(EngineSettings(preset="vllm"), SMALL, busy)
    others = resolve(EngineSettings(preset="trtllm"), SMALL, busy).cache.kv_budget_bytes
    assert others == int((10 * GIB - SMALL.weights_bytes) * 9 // 10)


def test_what_hangs_on_the_number_of_devices() -> None:
    """SGLang's reserve and the size of its graphs; what each device holds of weights and KV."""
    model = msgspec.structs.replace(
        SMALL,
        weights_bytes=141 * 10**9,
        widths=None,
        max_positions=131072,
        kv_groups=(KVGroupFacts(values_per_token=2 * 80 * 8 * 128, kv_heads=8),),
    )
    _inputs, expected = example("sglang_auto_fraction_table")
    for row in expected["rows"]:
        device = described(f"{row['tp']}x{row['gpu_mem_mib']}MiB")
        see = View(EngineSettings(preset="sglang"), model, LAPTOP, device)
        knobs = sglang.PRESET.knobs()
        for name, wanted in (
            ("kv_budget.mem_fraction_static", row["mem_fraction_static"]),
            ("graphs.decode_max_bs", row["decode_graph_max_bs"]),
            ("scheduler.chunked_prefill_size", row["chunked_prefill_size"]),
            ("parallel.tp_size", row["tp"]),
        ):
            ruled = knobs[name].at(see)
            assert ruled is not None
            assert ruled.value == wanted, (row["gpu"], name)
    user = EngineSettings(preset="vllm", cache=CacheSettings(kv_dtype="bf16"))
    cache = resolve(user, model, LAPTOP, described("4x80GB")).cache
    assert cache.kv_budget_bytes == 73_600_000_000 - 35_250_000_000
    assert cache.num_blocks == (cache.kv_budget_bytes // (16 * 80 * 1024),), "80 KiB a token"
    alone = resolve(user, model, LAPTOP, described("2x200GB")).cache
    assert alone.kv_budget_bytes == 184_000_000_000 - 70_500_000_000


def test_heads_that_do_not_suffice_are_on_more_than_one_device() -> None:
    group = KVGroupFacts(values_per_token=4 * 100, kv_heads=4)
    assert [group.values_on(n) for n in (1, 2, 3, 4, 8)] == [400, 200, 200, 100, 100]
    assert KVGroupFacts(values_per_token=576).values_on(8) == 576, "a latent vector is on all"
