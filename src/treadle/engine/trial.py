"""The trial before KV is allocated: what the largest step takes beside weights and KV, measured.

The step's program is recorded over pools of one block, as it will be over the real ones. A program
allocates all it will ever need when it is recorded, so nothing has to run for the figure to be
whole; on a CPU a largest step could take minutes.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernels.ops import Backend, KVSpec, StepInputs, StepLimits
from treadle.models.loader import Model


def measure_step_bytes(
    model: Model, backend: Backend, specs: Sequence[KVSpec], limits: StepLimits
) -> int:
    """Of step inputs, program and sampling. What the trial allocated is given back."""
    inputs = StepInputs(limits)
    pools = [backend.kv_pool(spec, 1) for spec in specs]
    program = model.record(backend.recorder(inputs, pools))
    sampling = backend.sampling.memory_bytes(model.card.vocab_size)
    return inputs.memory_bytes + program.memory_bytes + sampling
