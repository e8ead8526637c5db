"""Sampling against plain numpy in float64, row by row, with the same uniforms."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from treadle.kernels.ops import NO_TOKEN, Backend, LogitEdits, SampleRows

BORDER = 1e-5
"""Sums this close to a border may fall on either side of it."""


def sample_rows(count: int, **given: object) -> SampleRows:
    values: dict[str, object] = {
        "temperature": 1,
        "top_k": 0,
        "top_p": 1,
        "min_p": 0,
        "uniform": 0.5,
        **given,
    }
    types = {"top_k": np.int32, "uniform": np.float64}
    return SampleRows(
        **{
            name: np.ascontiguousarray(np.broadcast_to(value, count), types.get(name, np.float32))
            for name, value in values.items()
        }
    )


@dataclasses.dataclass
class Choice:
    token: int
    slack: float
    """Distance of the nearest border that could have changed the choice."""


def choose(logits: np.ndarray, rows: SampleRows, row: int) -> Choice:
    """Straight from the definition."""
    top_k, top_p = int(rows.top_k[row]), float(rows.top_p[row])
    min_p, uniform = float(rows.min_p[row]), float(rows.uniform[row])
    x = logits.astype(np.float64) / rows.temperature[row]
    p = np.exp(x - x.max())
    p /= p.sum()
    tokens = np.arange(len(p))
    slack = 1.0
    if 0 < top_k < len(p) or top_p < 1 or min_p > 0:
        tokens = np.lexsort((tokens, -p))
        keep = p[tokens] >= min_p * p.max()
        if min_p > 0:
            slack = np.abs(p / p.max() - min_p).min()
        tokens = tokens[keep]
        tokens = tokens[:top_k] if top_k > 0 else tokens
        running = np.cumsum(p[tokens]) / p[tokens].sum()
        if top_p < 1:
            slack = min(slack, np.abs(running - top_p).min())
            tokens = tokens[: np.argmax(running >= top_p) + 1]
    running = np.cumsum(p[tokens]) / p[tokens].sum()
    slack = min(slack, np.abs(running - uniform).min())
    return Choice(int(tokens[np.argmax(running > uniform)]), slack)


CUTS = {
    "none": {},
    "top_k": {"top_k": (1, 90)},
    "top_p": {"top_p": (0.02, 0.98)},
    "min_p": {"min_p": (0.02, 0.9)},
    "all": {"top_k": (1, 60), "top_p": (0.02, 0.98), "min_p": (0.005, 0.2)},
}


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("vocab", [61, 1000])
def test_sample(backend: Backend, cuts: str, ties: bool, vocab: int) -> None:
    rng = np.random.default_rng(vocab + ties)
    count = 500
    logits = rng.normal(size=(count, vocab)).astype(np.float32) * rng.choice([1, 4], (count, 1))
    if ties:
        logits = np.round(logits * 4) / 4
    logits = logits.astype(np.float32)
    rows = sample_rows(
        count,
        temperature=rng.uniform(0.2, 2, count),
        uniform=rng.random(count),
        **{name: rng.uniform(*span, count) for name, span in CUTS[cuts].items()},
    )

    tokens = backend.sampling.sample(logits.copy(), rows)

    undecided = 0
    for row, token in enumerate(tokens):
        choice = choose(logits[row], rows, row)
        undecided += choice.slack < BORDER
        # Two tokens within rounding of each other may also change places in the order.
        twins = 0 < abs(logits[row, token] - logits[row, choice.token]) < BORDER
        assert token == choice.token or choice.slack < BORDER or twins, row
    assert undecided < count / 20


@pytest.mark.parametrize("spread", [0.01, 1, 4, 30])
def test_cuts_of_a_large_vocabulary(backend: Backend, spread: float) -> None:
    """From weights that are all but equal, so that many fall into one bucket, to weights over many
    orders of magnitude."""
    rng = np.random.default_rng(int(spread * 100))
    count, vocab = 24, 30_000
    logits = (rng.normal(size=(count, vocab)) * spread).astype(np.float32)
    logits[: count // 2] = np.round(logits[: count // 2] * 8 / spread) / 8 * spread
    rows = sample_rows(
        count,
        top_p=rng.choice([0.05, 0.5, 0.95, 0.9999, 1], count),
        min_p=rng.choice([0, 0, 1e-4, 0.3], count),
        uniform=rng.choice([0, 0.3, 0.7, 0.999], count),
    )
    tokens = backend.sampling.sample(logits.copy(), rows)
    agreed = 0
    for row, token in enumerate(tokens):
        choice = choose(logits[row], rows, row)
        twins = abs(logits[row, token] - logits[row, choice.token]) < BORDER
        assert token == choice.token or choice.slack < BORDER or twins, row
        agreed += token == choice.token
    assert agreed > 0.7 * count


def test_greedy(backend: Backend) -> None:
    rng = np.random.default_rng(1)
    logits = np.round(rng.normal(size=(200, 333)) * 2).astype(np.float32)
    logits[0] = -np.inf
    logits[1] = 7
    logits[2, :-1] = -np.inf
    rows = sample_rows(200, temperature=0, top_k=5, top_p=0.5, uniform=rng.random(200))
    expected = logits.argmax(axis=1)
    expected[0] = NO_TOKEN
    np.testing.assert_array_equal(backend.sampling.sample(logits, rows), expected)


def test_each_row_has_its_own_parameters(backend: Backend) -> None:
    """Greedy, plain and cut rows in one call equal the same rows alone."""
    rng = np.random.default_rng(2)
    logits = rng.normal(size=(60, 100)).astype(np.float32)
    rows = sample_rows(
        60,
        temperature=np.arange(60) % 3 * 0.7,
        top_k=np.arange(60) % 5,
        top_p=np.where(np.arange(60) % 2, 0.8, 1),
        uniform=rng.random(60),
    )
    together = backend.sampling.sample(logits, rows)
    for row in range(60):
        one = SampleRows(*(getattr(rows, f.name)[[row]] for f in dataclasses.fields(rows)))
        assert backend.sampling.sample(logits[[row]], one) == together[row]


@pytest.mark.parametrize("uniform", [0.0, 0.25, 1 - 2**-53])
@pytest.mark.parametrize("cuts", [{}, {"top_k": 50}, {"top_p": 0.9999}, {"min_p": 1e-6}])
def test_impossible_tokens_are_never_chosen(
    backend: Backend, uniform: float, cuts: dict[str, float]
) -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(50, 200)).astype(np.float32)
    logits[:, 5:] = -np.inf
    logits[:, 0] = -np.inf
    logits[:25, 1] = -200  # possible, but its probability is below the smallest float32
    tokens = backend.sampling.sample(logits, sample_rows(50, uniform=uniform, **cuts))
    assert ((tokens >= 1) & (tokens < 5)).all()


def test_at_least_one_token_is_kept(backend: Backend) -> None:
    logits = np.zeros((3, 10), np.float32)
    logits[:, 4] = 1e-3
    rows = sample_rows(3, top_p=[1e-9, 1, 1], top_k=[0, 1, 0], min_p=[0, 0, 1], uniform=0.999)
    np.testing.assert_array_equal(backend.sampling.sample(logits, rows), [4, 4, 4])


def test_extreme_temperatures(backend: Backend) -> None:
    logits = np.array([[1, 3, 2, 3]] * 3, np.float32)
    rows = sample_rows(3, temperature=[1e-5, 1e-5, 100], uniform=[0.49, 0.51, 0.99])
    np.testing.assert_array_equal(backend.sampling.sample(logits, rows), [1, 3, 3])


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_rows_without_a_distribution_have_no_token(backend: Backend, bad: float) -> None:
    logits = np.full((4, 40), bad, np.float32)
    logits[3, 17] = -5
    rows = sample_rows(4, temperature=[0, 1, 1, 1], top_k=[0, 0, 3, 3], top_p=[1, 1, 0.5, 0.5])
    tokens = backend.sampling.sample(logits, rows)
    assert tokens.tolist() == [NO_TOKEN, NO_TOKEN, NO_TOKEN, 17]


@pytest.mark.parametrize("cuts", [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}])
def test_distribution(backend: Backend, cuts: dict[str, float]) -> None:
    """Random uniforms pass a chi-square test; evenly spaced ones give each token its share."""
    rng = np.random.default_rng(6)
    count, vocab = 5000, 16
    x = rng.normal(size=vocab).astype(np.float32) * 1.5
    p = np.exp(x.astype(np.float64))
    order = np.argsort(-p)
    p[p < cuts.get("min_p", 0) * p.max()] = 0
    p[order[int(cuts.get("top_k", vocab)) :]] = 0
    p /= p.sum()
    p[order[np.argmax(np.cumsum(p[order]) >= min(cuts.get("top_p", 1), 1 - 1e-9)) + 1 :]] = 0
    p /= p.sum()
    assert (p > 0).sum() == vocab if not cuts else 1 < (p > 0).sum() < vocab

    def counts(uniform: np.ndarray) -> np.ndarray:
        rows = sample_rows(count, uniform=uniform, **cuts)
        tokens = backend.sampling.sample(np.tile(x, (count, 1)), rows)
        return np.bincount(tokens, minlength=vocab)

    even = counts((np.arange(count) + 0.5) / count)
    assert (np.abs(even - count * p) <= 1.5).all()

    drawn = counts(rng.random(count))
    possible = p > 0
    assert drawn[~possible].sum() == 0
    chi_square = ((drawn - count * p)[possible] ** 2 / (count * p[possible])).sum()
    assert chi_square < 44.3  # exceeded once in 10,000 draws at 15 degrees of freedom


def test_edits(backend: Backend) -> None:
    rng = np.random.default_rng(7)
    logits = rng.normal(size=(9, 500)).astype(np.float32) * 5
    cells = rng.permutation(9 * 500)[:700].astype(np.int32)
    rows, tokens = cells // 500, cells % 500
    add = np.where(rng.random(700) < 0.5, 0, rng.normal(size=700) * 3).astype(np.float32)
    add[:20] = -np.inf
    repetition = rng.uniform(0.5, 2, 700).astype(np.float32)
    subtract = rng.normal(size=700).astype(np.float32)
    expected = logits.astype(np.float64)
    for at in range(700):
        x = expected[rows[at], tokens[at]] + add[at]
        x = x / repetition[at] if x > 0 else x * repetition[at]
        expected[rows[at], tokens[at]] = x - subtract[at]
    before = logits.copy()

    backend.sampling.edit(logits, LogitEdits(rows, tokens, add, repetition, subtract))

    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
    assert (logits[rows[:20], tokens[:20]] == -np.inf).all()
    untouched = np.ones((9, 500), bool)
    untouched[rows, tokens] = False
    np.testing.assert_array_equal(logits[untouched], before[untouched])


def test_no_edits(backend: Backend) -> None:
    logits = np.ones((2, 3), np.float32)
    none, nothing = np.zeros(0, np.int32), np.zeros(0, np.float32)
    backend.sampling.edit(logits, LogitEdits(none, none, nothing, nothing, nothing))
    assert (logits == 1).all()


@pytest.mark.parametrize("num_top", [0, 1, 20, 77])
@pytest.mark.parametrize("ties", [False, True])
def test_top_logprobs(backend: Backend, num_top: int, ties: bool) -> None:
    rng = np.random.default_rng(8)
    logits = (rng.normal(size=(8, 77)) * 6).astype(np.float32)
    if ties:
        logits = np.round(logits / 4)
    logits[3, 10:70] = -np.inf
    logits[4] += 1000
    rows = np.array([4, 0, 3, 7], np.int32)

    top = backend.sampling.top_logprobs(logits, rows, num_top)

    wide = logits[rows].astype(np.float64)
    largest = wide.max(axis=1, keepdims=True)
    log_sum = largest[:, 0] + np.log(np.exp(wide - largest).sum(axis=1))
    np.testing.assert_allclose(top.log_sum_exp, log_sum, rtol=1e-6, atol=2e-6)
    order = np.argsort(-wide, axis=1, kind="stable")[:, :num_top]
    np.testing.assert_array_equal(top.tokens, order)
    np.testing.assert_array_equal(top.logits, np.take_along_axis(logits[rows], order, axis=1))
    assert (top.tokens.dtype, top.logits.dtype) == (np.int32, np.float32)


@pytest.mark.parametrize("vocab", [5, 32, 61, 96, 1000])
def test_mask(backend: Backend, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.normal(size=(6, vocab)).astype(np.float32)
    rows = np.array([4, 0, 3], np.int32)
    allowed = rng.random((3, vocab)) < 0.4
    allowed[1] = True
    padded = np.zeros((3, -(-vocab // 32) * 32), np.bool_)
    padded[:, :vocab] = allowed
    words = np.packbits(padded, axis=1, bitorder="little").view(np.uint32)

    masked = logits.copy()
    backend.sampling.mask(masked, rows, words)

    expected = logits.copy()
    expected[rows] = np.where(allowed, logits[rows], -np.inf)
    np.testing.assert_array_equal(masked, expected)
