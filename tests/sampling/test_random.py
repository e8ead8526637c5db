"""Counter-based random numbers: a function of their key, and uniform."""

from __future__ import annotations

import numpy as np

from treadle.sampling.random import uniforms


def draw(seed: int, choice: int, index: int, purpose: int = 1) -> float:
    arrays = (np.array([value], np.uint64) for value in (seed, choice, index))
    return float(uniforms(*arrays, purpose=purpose)[0])


def test_known_values_do_not_change() -> None:
    """A seed promises the same answer in later versions too."""
    drawn = [draw(0, 0, 0), draw(1, 0, 0), draw(2**64 - 1, 3, 1000)]
    assert drawn == [0.21362599356473044, 0.9921211639411094, 0.8472461490554918]


def test_every_part_of_the_key_counts() -> None:
    base = draw(5, 1, 9)
    others = [draw(6, 1, 9), draw(5, 2, 9), draw(5, 1, 10), draw(5, 1, 9, purpose=2)]
    assert len({base, *others}) == 5


def test_a_draw_does_not_depend_on_its_neighbours() -> None:
    seeds = np.arange(50, dtype=np.uint64)
    together = uniforms(seeds, seeds, seeds, purpose=1)
    assert together.tolist() == [draw(i, i, i) for i in range(50)]


def test_draws_are_uniform_along_seeds_choices_and_indexes() -> None:
    n = 20_000
    run, zero = np.arange(n, dtype=np.uint64), np.zeros(n, np.uint64)
    for key in ((run, zero, zero), (zero, run, zero), (zero, zero, run)):
        values = uniforms(*key, purpose=1)
        assert values.min() >= 0
        assert values.max() < 1
        counts = np.histogram(values, bins=20, range=(0, 1))[0]
        chi_square = ((counts - n / 20) ** 2 / (n / 20)).sum()
        assert chi_square < 45, "19 degrees of freedom; beyond 45 in one of 1,500 runs"
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03
