"""Random numbers as a function of (request seed, choice, output index, purpose).

No generator has a state, so a token's draw does not depend on the batch, on preemption, or on how
many tokens were drafted. The mixing function is the finaliser of SplitMix64.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

UInts = npt.NDArray[np.uint64]

PURPOSE_TOKEN = 1
"""The draw that chooses an output token."""

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniforms(
    seeds: UInts, choices: UInts, indexes: UInts, *, purpose: int
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per entry, 53 random bits each; all arrays [n] uint64."""
    key = _mix(seeds)
    for part in (choices, indexes, np.full_like(seeds, purpose)):
        key = _mix(key ^ _mix(part + _GAMMA))
    return (key >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: UInts) -> UInts:
    x = x + _GAMMA
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
