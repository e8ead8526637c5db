"""/metrics: the names, types, labels and buckets of vLLM and SGLang, with numbers that add up."""

from __future__ import annotations

import math
from collections.abc import Callable

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.server import fake_engine as script
from tests.server.served import Served, eventually
from treadle.server.metrics import Metrics, Names
from treadle.text.observe import Ended, Observer
from treadle.wire.messages import Ready, Stats, Timings

READY = Ready(
    max_model_len=512,
    vocab_size=9,
    kv_capacity_tokens=400,
    eos_token_ids=[2],
    resolved={
        "block_size": 16,
        "kv_dtype": "f16",
        "num_blocks": [10, 15],
        "prefix_cache": "radix",
    },
)
STATS = Stats(
    running=1,
    waiting=2,
    kv_usage=0.25,
    prompt_tokens=3,
    generation_tokens=4,
    prefix_queries=5,
    prefix_hits=2,
    preemptions=7,
    steps=8,
    step_tokens=40,
    compiling=1,
    forced_tokens=9,
)

# What dashboards for vLLM rely on: its documentation, not our code.
TTFT = [
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20),
    *(40, 80, 160, 640, 2560),
]
ITL = [
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40),
    80,
]
E2E = [
    *(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920),
    7680,
]
TOKENS = [1, 2, 5, 10, 20, 50, 100, 200, 500]
VLLM_HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": TTFT,
    "vllm:inter_token_latency_seconds": ITL,
    "vllm:request_time_per_output_token_seconds": ITL,
    "vllm:e2e_request_latency_seconds": E2E,
    "vllm:request_queue_time_seconds": E2E,
    "vllm:request_inference_time_seconds": E2E,
    "vllm:request_prefill_time_seconds": E2E,
    "vllm:request_decode_time_seconds": E2E,
    "vllm:request_prompt_tokens": TOKENS,
    "vllm:request_generation_tokens": TOKENS,
    "vllm:request_max_num_generation_tokens": TOKENS,
    "vllm:request_params_max_tokens": TOKENS,
    "vllm:request_params_n": [1, 2, 5, 10, 20],
    "vllm:iteration_tokens_total": [
        *(1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    ],
}
VLLM_COUNTERS = {
    "vllm:prompt_tokens_total": 3,
    "vllm:generation_tokens_total": 4,
    "vllm:prefix_cache_queries_total": 5,
    "vllm:prefix_cache_hits_total": 2,
    "vllm:num_preemptions_total": 7,
    "vllm:grammar_forced_tokens_total": 9,
    "vllm:admission_rejections_total": 0,
}
VLLM_GAUGES = {
    "vllm:num_requests_running": 1,
    "vllm:num_requests_waiting": 2,
    "vllm:num_requests_compiling_grammar": 1,
    "vllm:kv_cache_usage_perc": 0.25,
}
SGLANG_TTFT = [0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400]
SGLANG_HISTOGRAMS = {
    "sglang:time_to_first_token_seconds": SGLANG_TTFT,
    "sglang:e2e_request_latency_seconds": [*SGLANG_TTFT, 600, 1200, 1800, 2400],
    "sglang:inter_token_latency_seconds": [
        *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08),
        *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
    ],
}
SGLANG_COUNTERS = {
    "sglang:prompt_tokens_total": 3,
    "sglang:generation_tokens_total": 4,
    "sglang:num_requests_total": 0,
    "sglang:num_aborted_requests_total": 0,
}
SGLANG_GAUGES = {
    "sglang:num_running_reqs": 1,
    "sglang:num_queue_reqs": 2,
    "sglang:num_grammar_queue_reqs": 1,
    "sglang:token_usage": 0.25,
    "sglang:num_used_tokens": 100,
    "sglang:cache_hit_rate": 0.4,
    "sglang:num_retracted_reqs": 7,
    "sglang:gen_throughput": 0,
}


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(text: str) -> dict[tuple[str, str], float]:
    """(name, the labels that are neither the model nor the engine) → value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = [v for k, v in sample.labels.items() if k not in ("model_name", "engine")]
            found[sample.name, ",".join(own)] = sample.value
    return found


def watched(names: Names) -> tuple[Metrics, dict[str, Metric]]:
    metrics = Metrics("m", names)
    metrics.watch(READY, lambda: STATS)
    return metrics, families(metrics.exposition().decode())


def value_of(family: Metric, name: str) -> float:
    [sample] = [one for one in family.samples if one.name == name]
    return sample.value


@pytest.mark.parametrize(
    ("names", "histograms", "counters", "gauges", "labels"),
    [
        ("vllm", VLLM_HISTOGRAMS, VLLM_COUNTERS, VLLM_GAUGES, {"model_name": "m", "engine": "0"}),
        ("sglang", SGLANG_HISTOGRAMS, SGLANG_COUNTERS, SGLANG_GAUGES, {"model_name": "m"}),
    ],
)
def test_names_types_labels_and_buckets(
    names: Names,
    histograms: dict[str, list[float]],
    counters: dict[str, float],
    gauges: dict[str, float],
    labels: dict[str, str],
) -> None:
    _, found = watched(names)
    assert all(name.startswith(f"{names}:") for name in found)
    for name, buckets in histograms.items():
        family = found[name]
        assert family.type == "histogram"
        bounds = [float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket")]
        assert bounds == [*buckets, math.inf], name
        assert all(labels.items() <= sample.labels.items() for sample in family.samples)
    for name, value in counters.items():
        family = found[name.removesuffix("_total")]
        assert (family.type, value_of(family, name)) == ("counter", value)
        assert all(labels == sample.labels for sample in family.samples)
    for name, value in gauges.items():
        assert (found[name].type, value_of(found[name], name)) == ("gauge", value)
        assert [sample.labels for sample in found[name].samples] == [labels]


def test_both_names_at_once() -> None:
    _, found = watched("both")
    assert {*VLLM_GAUGES, *SGLANG_GAUGES} <= set(found)


def test_reasons_are_there_before_anything_ends() -> None:
    metrics, _ = watched("vllm")
    found = samples(metrics.exposition().decode())
    for reason in ("stop", "length", "abort", "error"):
        assert found["vllm:request_success_total", reason] == 0


def test_cache_config() -> None:
    _, found = watched("vllm")
    [sample] = found["vllm:cache_config_info"].samples
    assert sample.value == 1
    assert sample.labels == {
        "block_size": "16",
        "cache_dtype": "f16",
        "enable_prefix_caching": "True",
        "num_gpu_blocks": "25",
        "engine": "0",
    }


def test_nothing_is_said_for_an_engine_that_has_not_spoken() -> None:
    metrics = Metrics("m")
    metrics.watch(READY, lambda: None)
    assert "vllm:num_requests_running" not in metrics.exposition().decode()


def test_two_servers_in_one_process_do_not_meet() -> None:
    first, second = Metrics("m"), Metrics("m")
    first.ended(ended(reason="stop"))
    assert samples(first.exposition().decode())["vllm:request_success_total", "stop"] == 1
    assert samples(second.exposition().decode())["vllm:request_success_total", "stop"] == 0


def ended(**changes: object) -> Ended:
    facts: dict[str, object] = {
        "request_id": "r-0",
        "reason": "length",
        "seconds": 0.9,
        "first_s": 0.3,
        "prompt_tokens": 12,
        "cached_tokens": 3,
        "generation_tokens": 7,
        "max_tokens": 9,
        "timings": Timings(0.1, 0.2, 0.4),
        "group": (2, 30),
    }
    return Ended(**{**facts, **changes})  # type: ignore[arg-type]


def test_an_answer_is_observed_once_everywhere() -> None:
    metrics, _ = watched("vllm")
    observer: Observer = metrics
    observer.first_token(0.3)
    observer.next_tokens(0.03)
    observer.ended(ended())
    found = samples(metrics.exposition().decode())
    expected = {
        "time_to_first_token_seconds": 0.3,
        "inter_token_latency_seconds": 0.03,
        "request_time_per_output_token_seconds": 0.1,  # six gaps in 0.6 s
        "e2e_request_latency_seconds": 0.9,
        "request_queue_time_seconds": 0.1,
        "request_prefill_time_seconds": 0.2,
        "request_decode_time_seconds": 0.4,
        "request_inference_time_seconds": 0.6,
        "request_prompt_tokens": 12,
        "request_generation_tokens": 7,
        "request_max_num_generation_tokens": 30,
        "request_params_max_tokens": 9,
        "request_params_n": 2,
    }
    for name, value in expected.items():
        assert found[f"vllm:{name}_count", ""] == 1, name
        assert found[f"vllm:{name}_sum", ""] == pytest.approx(value), name


def test_what_did_not_happen_is_not_observed() -> None:
    metrics, _ = watched("vllm")
    metrics.ended(
        ended(reason="abort", first_s=None, generation_tokens=0, timings=None, group=None)
    )
    found = samples(metrics.exposition().decode())
    for name in ("queue_time_seconds", "time_per_output_token_seconds", "params_n"):
        assert found[f"vllm:request_{name}_count", ""] == 0
    assert found["vllm:request_success_total", "abort"] == 1


def test_tokens_of_steps() -> None:
    metrics, _ = watched("vllm")
    metrics.measured(STATS)
    metrics.measured(STATS)
    found = samples(metrics.exposition().decode())
    assert found["vllm:iteration_tokens_total_count", ""] == 8
    assert found["vllm:iteration_tokens_total_sum", ""] == 40


Now = Callable[[], dict[tuple[str, str], float]]


@pytest.fixture
def now(server: Served) -> Now:
    eventually(lambda: server.running() == 0)
    return lambda: samples(httpx.get(f"{server.url}/metrics").text)


def test_a_request_is_counted(server: Served, now: Now) -> None:
    before = now()
    # Slow enough that no two tokens arrive as one.
    assert server.complete([script.SLOW, 1100, 1101], max_tokens=7, n=2).status_code == 200
    eventually(lambda: server.running() == 0)
    after = now()
    growth = {key: after[key] - before.get(key, 0.0) for key in after}
    assert growth["vllm:prompt_tokens_total", ""] == 6
    assert growth["vllm:generation_tokens_total", ""] == 14
    assert growth["vllm:request_success_total", "length"] == 2
    assert growth["vllm:e2e_request_latency_seconds_count", ""] == 2
    assert growth["vllm:time_to_first_token_seconds_count", ""] == 2
    assert growth["vllm:inter_token_latency_seconds_count", ""] == 12
    assert growth["vllm:request_prompt_tokens_sum", ""] == 6
    assert growth["vllm:request_generation_tokens_sum", ""] == 14
    assert growth["vllm:request_params_n_sum", ""] == 2
    assert growth["vllm:request_params_n_count", ""] == 1
    assert growth["vllm:request_max_num_generation_tokens_sum", ""] == 7
    assert growth["vllm:request_decode_time_seconds_count", ""] == 2
    assert growth["http_requests_total", "/v1/completions,POST,2xx"] == 1
    assert growth["http_request_duration_seconds_count", "/v1/completions,POST"] == 1


def test_aborts_and_errors_are_counted_and_gauges_fall(server: Served, now: Now) -> None:
    before = now()
    with server.open_request("/v1/completions", prompt=[script.HOLD], max_tokens=9, n=3):
        eventually(lambda: now()["vllm:num_requests_running", ""] == 3)
    assert server.complete([script.REFUSE], max_tokens=9).status_code == 400
    eventually(lambda: now()["vllm:num_requests_running", ""] == 0)
    after = now()
    growth = {key: after[key] - before.get(key, 0.0) for key in after}
    assert growth["vllm:request_success_total", "abort"] == 3
    assert growth["vllm:request_success_total", "error"] == 1
    assert growth["http_requests_total", "/v1/completions,POST,4xx"] == 2
    assert after["vllm:kv_cache_usage_perc", ""] == 0


def test_who_leaves_before_a_stream_begins_is_no_failure(server: Served, now: Now) -> None:
    before = now()
    with server.open_request("/v1/completions", prompt=[script.HOLD], max_tokens=9, stream=True):
        eventually(lambda: now()["vllm:num_requests_running", ""] == 1)
    eventually(lambda: now()["vllm:num_requests_running", ""] == 0)
    key = ("http_requests_total", "/v1/completions,POST,4xx")
    eventually(lambda: now()[key] == before.get(key, 0.0) + 1)


def test_paths_that_clients_invent_do_not_become_labels(server: Served, now: Now) -> None:
    before = now().get(("http_requests_total", "none,GET,4xx"), 0.0)
    for number in range(3):
        assert httpx.get(f"{server.url}/no/such/{number}").status_code == 404
    assert httpx.get(f"{server.url}/health").status_code == 200
    after = now()
    assert after["http_requests_total", "none,GET,4xx"] == before + 3
    handlers = {key[1].split(",")[0] for key in after if key[0] == "http_requests_total"}
    assert not [handler for handler in handlers if "such" in handler]
