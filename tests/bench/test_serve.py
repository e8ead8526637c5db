"""`bench serve` against a server whose times, counts and faults are scripted."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.bench.scripted import Script, serving, tokens_of
from treadle.bench.drive import Plan
from treadle.bench.figures import failures, parse_limits, show
from treadle.bench.report import WIDTH
from treadle.bench.serve import Report, Server, measure
from treadle.bench.workloads import Name, workload
from treadle.errors import InvalidRequest, StartError

SLACK_S = 0.010
"""By which half of the times may be late. A busy machine delays any one of them by more, and none
comes out shorter than it was."""


def run(
    script: Script,
    name: Name = "concurrent",
    *,
    goodput: str = "",
    timeout_s: float = 20.0,
    tokenizer: Path | None = None,
    **given: float,
) -> Report:
    sizes = {"num_requests": 4, "input_len": 12, "output_len": 6, "seed": 5, **given}
    warmup, cached = int(sizes.pop("num_warmup", 0)), bool(sizes.pop("cached_prefix", False))
    plan = Plan(
        workload=workload(name, **sizes),
        num_warmup=warmup,
        cached_prefix=cached,
        timeout_s=timeout_s,
    )

    async def main() -> Report:
        async with serving(script) as server:
            asked = Server(url=server.url, tokenizer=tokenizer)
            return await measure(asked, plan, parse_limits([goodput]), lambda: None)

    return asyncio.run(main())


def test_times_are_those_of_the_script() -> None:
    script = Script()
    report = run(script, "single")
    assert [one.error for one in report.requests] == [None] * 4
    late = []
    for one, sent, received in zip(report.requests, script.sent, script.received, strict=True):
        assert one.ttft_s is not None
        assert one.latency_s is not None
        # The server's own clock is the oracle: the client sees each event just after it was sent.
        late += [one.ttft_s - (sent[0] - received), one.latency_s - (sent[-1] - received)]
        gaps = np.diff(sent)
        assert len(one.itl_s) == len(gaps) == 5
        assert abs(np.median(one.itl_s) - np.median(gaps)) < SLACK_S
        assert one.tpot_s == pytest.approx((one.latency_s - one.ttft_s) / 5)
    assert min(late) >= 0
    assert np.median(late) < SLACK_S


def test_figures_are_those_of_the_raw_times() -> None:
    """Every figure computed again from the JSON report's raw times, with numpy."""
    report = run(Script(), concurrency=2)
    requests = json.loads(msgspec.json.encode(report))["requests"]
    found = report.figures
    ms = {
        "ttft_ms": [one["ttft_s"] for one in requests],
        "tpot_ms": [(one["latency_s"] - one["ttft_s"]) / 5 for one in requests],
        "itl_ms": [gap for one in requests for gap in one["itl_s"]],
        "e2el_ms": [one["latency_s"] for one in requests],
    }
    for name, seconds in ms.items():
        values = np.array(seconds) * 1000
        spread = getattr(found, name)
        assert spread.mean == pytest.approx(values.mean())
        assert spread.std == pytest.approx(values.std())
        for percent in (50, 90, 99):
            assert getattr(spread, f"p{percent}") == pytest.approx(np.percentile(values, percent))
    assert found.total_input_tokens == 4 * 12
    assert found.total_output_tokens == 4 * 6
    assert found.output_throughput == pytest.approx(24 / found.duration_s)
    assert found.total_throughput == pytest.approx((24 + 48) / found.duration_s)
    assert found.request_throughput == pytest.approx(4 / found.duration_s)
    ends = [one["sent_s"] + one["latency_s"] for one in requests]
    assert max(ends) <= found.duration_s


def test_tokens_are_counted_by_usage_not_by_events() -> None:
    report = run(Script(tokens_per_event=3), "single", num_requests=1)
    (one,) = report.requests
    assert (one.completion_tokens, len(one.itl_s)) == (6, 1)
    assert one.tpot_s == pytest.approx(((one.latency_s or 0) - (one.ttft_s or 0)) / 5)
    assert one.cached_tokens == report.figures.total_cached_tokens == 3


def test_a_server_that_tells_no_usage_is_not_guessed_at() -> None:
    report = run(Script(usage=False), num_requests=1)
    assert "usage" in (report.requests[0].error or "")
    assert report.figures.total_output_tokens == 0


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (Script(status=lambda number: 503), "status 503: scripted refusal"),
        (Script(break_after=2), "the connection failed"),
        (Script(error_after=2), "scripted failure"),
        (Script(first_s=5.0), "no end after 0.2 s"),
    ],
    ids=["status", "broken off", "error in the stream", "timeout"],
)
def test_every_fault_is_an_error_of_its_request(script: Script, error: str) -> None:
    report = run(script, num_requests=2, timeout_s=0.2)
    assert [error in (one.error or "") for one in report.requests] == [True, True]
    found = report.figures
    assert (found.completed, found.failed, found.request_throughput) == (0, 2, 0.0)
    assert (found.ttft_ms, found.tpot_ms, found.itl_ms, found.e2el_ms) == (None,) * 4
    assert failures(report.requests)
    (reason,) = found.errors
    assert f"Failed 2 times: {reason}" in show(found)


def test_failed_requests_change_no_other_figure() -> None:
    report = run(Script(status=lambda number: 200 if number % 2 else 500))
    found = report.figures
    assert (found.completed, found.failed) == (2, 2)
    assert found.total_output_tokens == 12
    assert not failures(report.requests)


def test_goodput_counts_requests_within_every_limit() -> None:
    """The first two answers are quick; a limit between the two kinds parts them."""
    script = Script(first_s=0.0, gap_s=0.0)

    def status(number: int) -> int:
        script.first_s = 0.0 if number < 2 else 0.4
        return 200

    script.status = status
    report = run(script, "single", goodput="ttft:200 e2el:5000")
    goodput = report.figures.goodput
    assert goodput is not None
    assert (goodput.num_good, goodput.share) == (2, 0.5)
    assert goodput.per_s == pytest.approx(2 / report.figures.duration_s)
    assert goodput.limits_ms == {"ttft": 200.0, "e2el": 5000.0}


@pytest.mark.parametrize("text", ["ttft", "ttft:x", "ttft:-1", "latency:5", "itl:5", "ttft:nan"])
def test_a_wrong_limit_is_named(text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"--goodput {text}"):
        parse_limits([text])


def test_concurrency_is_kept_and_reached() -> None:
    script = Script()
    run(script, num_requests=9, concurrency=3)
    assert script.most_at_once == 3


def test_poisson_requests_come_when_they_are_due() -> None:
    script = Script(first_s=0.0, gap_s=0.0)
    report = run(script, "poisson", num_requests=6, rate=20.0)
    due = [one.arrival_s for one in report.requests]
    assert due == sorted(due)
    assert len(set(due)) == 6
    late = [one.sent_s - one.arrival_s for one in report.requests]
    assert min(late) >= 0
    assert np.median(late) < SLACK_S
    apart = np.diff(np.array(script.received)) - np.diff(due)
    assert np.median(np.abs(apart)) < SLACK_S


def test_prompts_are_token_exact_as_ids_and_as_text() -> None:
    for script in (Script(), Script(takes_ids=False), Script(tokenize_field="content")):
        report = run(script)
        assert [one.prompt_tokens for one in report.requests] == [
            12 + (not script.takes_ids)  # the server's own first token
        ] * 4
        assert report.figures.num_off_length == 0
    report = run(Script(takes_ids=False))
    assert report.server.prompts == "text"


def test_prompts_hold_ordinary_tokens_and_differ_from_their_start() -> None:
    script = Script()
    run(script, num_requests=8, num_warmup=1)
    prompts = [tuple(body["prompt"]) for body in script.bodies]
    assert len(prompts) == 9
    assert all(0 not in prompt for prompt in prompts)
    assert len({prompt[:4] for prompt in prompts}) == 9


def test_one_seed_is_one_set_of_prompts() -> None:
    sets = []
    for seed in (1, 1, 2):
        script = Script(first_s=0.0, gap_s=0.0)
        run(script, "single", seed=seed)
        sets.append([body["prompt"] for body in script.bodies])
    assert sets[0] == sets[1] != sets[2]


@pytest.mark.parametrize("cached", [False, True])
def test_a_shared_prefix_is_sent_ahead_only_when_asked(cached: bool) -> None:
    script = Script(first_s=0.0, gap_s=0.0)
    run(script, "shared-prefix", prefix_len=20, num_warmup=1, cached_prefix=cached)
    warmup, *rest = [body["prompt"] for body in script.bodies]
    ahead = [rest.pop(0)] if cached else []
    prefix = rest[0][:20]
    assert all(prompt[:20] == prefix and len(prompt) == 32 for prompt in rest)
    assert len({tuple(prompt[20:]) for prompt in rest}) == 4
    assert warmup[:4] != prefix[:4]
    assert ahead == ([prefix] if cached else [])


@pytest.mark.parametrize("tells_ids", [True, False])
def test_turns_append_the_answers(tells_ids: bool) -> None:
    script = Script(first_s=0.0, gap_s=0.0, tells_ids=tells_ids)
    report = run(script, "multi-turn", num_requests=1, turns=3)
    first, second, third = (body["prompt"] for body in script.bodies)
    answer = [7] * 6 if tells_ids else tokens_of(" ab" * 6, special=False)
    assert second[: 12 + 6] == first + answer
    assert third[: 18 + 18] == second[:30] + answer
    assert [one.prompt_tokens for one in report.requests] == [12, 30, 48]
    assert report.figures.num_off_length == 0


def test_turns_of_text_append_the_text() -> None:
    script = Script(first_s=0.0, gap_s=0.0, takes_ids=False)
    run(script, "multi-turn", num_requests=1, turns=2)
    first, second = (body["prompt"] for body in script.bodies)
    assert second.startswith(first + " ab" * 6)


def test_a_failed_turn_ends_its_conversation_alone() -> None:
    script = Script(status=lambda number: 500 if number == 0 else 200)
    report = run(script, "multi-turn", num_requests=2, turns=2, concurrency=1)
    assert [(one.conversation, one.turn, one.error is None) for one in report.requests] == [
        (0, 0, False),
        (1, 0, True),
        (1, 1, True),
    ]


def test_without_a_tokenizer_nothing_is_guessed(demo_gguf: Path) -> None:
    with pytest.raises(StartError, match="--tokenizer"):
        run(Script(tokenize_field=None))
    report = run(Script(tokenize_field=None), tokenizer=demo_gguf)
    assert report.server.num_units > 40_000


def test_the_report_is_stable_and_can_be_read_back() -> None:
    """A field that goes or changes its name breaks whoever reads reports: raise SCHEMA with it."""
    report = run(Script(), num_requests=1, goodput="ttft:500")
    data = json.loads(msgspec.json.encode(report))
    assert set(data) == {"schema", "treadle", "date", "server", "plan", "figures", "requests"}
    assert data["schema"] == 1
    assert set(data["figures"]) >= {
        *("completed", "failed", "duration_s", "total_input_tokens", "total_output_tokens"),
        *("total_cached_tokens", "request_throughput", "input_throughput", "output_throughput"),
        *("total_throughput", "ttft_ms", "tpot_ms", "itl_ms", "e2el_ms", "goodput", "errors"),
    }
    assert set(data["requests"][0]) >= {
        *("conversation", "turn", "arrival_s", "sent_s", "ttft_s", "latency_s", "itl_s"),
        *("prompt_tokens", "completion_tokens", "cached_tokens", "finish_reason", "error"),
    }
    assert set(data["figures"]["ttft_ms"]) == {"mean", "std", "p50", "p90", "p99", "min", "max"}
    assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_the_table_fits_eighty_columns() -> None:
    lines = show(run(Script(), goodput="ttft:500 tpot:50 e2el:100000").figures)
    assert max(map(len, lines)) <= WIDTH
    for metric in ("TTFT", "TPOT", "ITL", "E2EL"):
        assert sum(f"({metric})" in line for line in lines) == 1
