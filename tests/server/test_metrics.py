"""/metrics: vLLM's names and buckets, with numbers that add up."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.server.served import Served, eventually
from treadle.server.metrics import Metrics
from treadle.wire.messages import Stats

STATS = Stats(
    running=1,
    waiting=2,
    kv_usage=0.25,
    prompt_tokens=3,
    generation_tokens=4,
    prefix_queries=5,
    prefix_hits=6,
    preemptions=7,
    steps=8,
)


def samples(text: str) -> dict[tuple[str, str], float]:
    """(name, the label that is not the model's name) → value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("model_name") in ("m", "fake")
            found[sample.name, "".join(sample.labels.values())] = sample.value
    return found


def test_what_the_engine_says_of_itself() -> None:
    metrics = Metrics("m")
    stats: list[Stats | None] = [None]
    metrics.watch(lambda: stats[0])
    assert "vllm:num_requests_running" not in metrics.exposition().decode()
    stats[0] = STATS
    found = samples(metrics.exposition().decode())
    expected = {
        "vllm:num_requests_running": 1,
        "vllm:num_requests_waiting": 2,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:prompt_tokens_total": 3,
        "vllm:generation_tokens_total": 4,
        "vllm:prefix_cache_queries_total": 5,
        "vllm:prefix_cache_hits_total": 6,
        "vllm:num_preemptions_total": 7,
    }
    assert {name: found[name, ""] for name in expected} == expected


def test_two_servers_in_one_process_do_not_meet() -> None:
    first, second = Metrics("m"), Metrics("m")
    first.finished("stop", 0.4)
    assert samples(first.exposition().decode())["vllm:request_success_total", "stop"] == 1
    assert ("vllm:request_success_total", "stop") not in samples(second.exposition().decode())


def test_latencies_fall_into_vllms_buckets() -> None:
    metrics = Metrics("m")
    metrics.first_token(0.015)
    metrics.next_tokens(0.03)
    metrics.finished("length", 0.9)
    found = samples(metrics.exposition().decode())
    for name, below, above, last in (
        ("time_to_first_token", "0.01", "0.02", "2560.0"),
        ("inter_token_latency", "0.025", "0.05", "80.0"),
        ("e2e_request_latency", "0.8", "1.0", "7680.0"),
    ):
        bucket = f"vllm:{name}_seconds_bucket"
        assert found[bucket, below] == 0
        assert found[bucket, above] == found[bucket, last] == found[bucket, "+Inf"] == 1


def test_a_request_is_counted(server: Served) -> None:
    def now() -> dict[tuple[str, str], float]:
        return samples(httpx.get(f"{server.url}/metrics").text)

    eventually(lambda: server.running() == 0)
    before = now()
    # Slow enough that no two tokens arrive as one.
    assert server.complete([1005, 1100, 1101], max_tokens=7, n=2).status_code == 200
    eventually(lambda: server.running() == 0)
    after = now()
    growth = {key: after[key] - before.get(key, 0.0) for key in after}
    assert growth["vllm:prompt_tokens_total", ""] == 6
    assert growth["vllm:generation_tokens_total", ""] == 14
    assert growth["vllm:request_success_total", "length"] == 2
    assert growth["vllm:e2e_request_latency_seconds_count", ""] == 2
    assert growth["vllm:time_to_first_token_seconds_count", ""] == 2
    assert growth["vllm:inter_token_latency_seconds_count", ""] == 12
