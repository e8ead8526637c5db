"""Workloads: defaults, what may be given to which, and when requests arrive."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from treadle.bench.report import WIDTH, number, spread, table
from treadle.bench.workloads import NAMES, Prompts, arrivals, conversations, workload
from treadle.errors import InvalidRequest


@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_has_the_length_asked_for(name: str) -> None:
    chosen = workload(name, num_requests=3, input_len=10, seed=1)  # type: ignore[arg-type]
    for turns in conversations(chosen, Prompts(range(100), 1)):
        assert len(turns) == chosen.turns
        assert [len(added) for added in turns] == [chosen.prefix_len + 10] + [10] * (
            chosen.turns - 1
        )


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("single", "concurrency"),
        ("single", "rate"),
        ("concurrent", "turns"),
        ("concurrent", "prefix_len"),
        ("multi-turn", "prefix_len"),
    ],
)
def test_what_a_workload_would_not_read_is_refused(name: str, field: str) -> None:
    option = "--" + field.replace("_", "-")
    with pytest.raises(InvalidRequest, match=f"{option} has no meaning for {name}, only for"):
        workload(name, **{field: 2})  # type: ignore[arg-type]


def test_arrivals_have_the_rate_and_spread_of_a_poisson_process() -> None:
    chosen = workload("poisson", num_requests=4000, rate=50.0, seed=3)
    gaps = np.diff(list(arrivals(chosen)))
    assert gaps.mean() == pytest.approx(1 / 50, rel=0.05)
    # Of exponential gaps the deviation is the mean, and a share of 1/e is longer than it.
    assert gaps.std() == pytest.approx(1 / 50, rel=0.1)
    assert (gaps > 1 / 50).mean() == pytest.approx(np.exp(-1), abs=0.03)


def test_without_a_rate_all_arrive_at_once() -> None:
    assert set(arrivals(workload("concurrent", num_requests=5))) == {0.0}


def test_statistics_are_those_of_numpy() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 10, 101):
        values = rng.gamma(2.0, 1.0, count)
        found = spread(values.tolist())
        assert found is not None
        expected = [values.mean(), values.std(), *np.percentile(values, [50, 90, 99])]
        given = [found.mean, found.std, found.p50, found.p90, found.p99]
        assert given == pytest.approx(expected)
        assert (found.min, found.max) == (values.min(), values.max())
    assert spread([]) is None


def test_tables_align_and_fit() -> None:
    rows = [("a long name of a figure", 123456.7, 0.5, None), ("b", 1, 22.25, "text")]
    lines = table(("what", "x", "y", "z"), rows)
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(lines[0]) <= WIDTH
    assert [number(v) for v in (1234567, 123456.7, 12.345, 0.12345, None)] == [
        *("1,234,567", "123,457", "12.35", "0.123", "–")
    ]
    assert all(a.split()[-1] == b for a, b in zip(lines, ("z", "–", "text"), strict=True))


def test_prompts_go_on_without_repeating() -> None:
    prompts = Prompts(range(1000), seed=7)
    drawn = [tuple(prompts.units(8)) for _ in range(500)]
    assert all(a != b for a, b in itertools.combinations(drawn, 2))
