"""llama.cpp through its C API: all sequences in one batch, greedy, no HTTP and no JavaScript.

What all prompts of a batch share is computed once and lent to the others, as llama.cpp's own
batched-bench does: its cache finds nothing by itself, so the driver looks.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

# This file is named like a package of Python bindings.
sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).parent]
sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.drivers.libllama import NUM_BATCH, Context, Library, Model  # noqa: E402
from benchmarks.drivers.protocol import Ask, Asked, Times, run  # noqa: E402

WORTH_SHARING = 32
"""One pool for all rows costs more attention than it saves where little is shared."""


def load(path: str, threads: int, folder: str) -> Ask:
    model = Model(Library(Path(folder)), Path(path))

    def ask(asked: Asked, times: Times) -> None:
        num_shared = shared_length(asked.prompts)
        num_rows = len(asked.prompts)
        own = max(map(len, asked.prompts)) + asked.output_len - num_shared
        size = num_shared + num_rows * own if num_shared else num_rows * own
        context = Context(model, num_rows, size, threads=threads, unified=num_shared > 0)
        with contextlib.closing(context):
            if asked.cached_len:
                _prefill(context, asked.prefix)
            times.start()
            _answer(context, asked, times, num_shared)

    return ask


def shared_length(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens that begin every prompt alike. Each keeps one of its own, whose logits give its
    answer's first."""
    if len(prompts) == 1:
        return 0
    pairs = enumerate(zip(*prompts, strict=False))
    shortest = min(map(len, prompts))
    length = next((at for at, tokens in pairs if len(set(tokens)) > 1), shortest)
    return min(length, shortest - 1) if length >= WORTH_SHARING else 0


def _prefill(context: Context, tokens: Sequence[int], begin: int = 0) -> None:
    work = [(0, at, tokens[at], False) for at in range(begin, len(tokens))]
    for at in range(0, len(work), NUM_BATCH):
        context.decode(work[at : at + NUM_BATCH])


def _answer(context: Context, asked: Asked, times: Times, num_shared: int) -> None:
    """Every call decodes all running rows, and fills up with what prompts are left."""
    prompts, num_left = asked.prompts, [asked.output_len] * len(asked.prompts)
    if num_shared:
        _prefill(context, prompts[0][:num_shared], asked.cached_len)
        for row in range(1, len(prompts)):
            context.share(0, row, num_shared)
    waiting = deque(
        (row, at, prompt[at], at == len(prompt) - 1)
        for row, prompt in enumerate(prompts)
        for at in range(num_shared, len(prompt))
    )
    running: list[tuple[int, int, int, bool]] = []
    while waiting or running:
        room = NUM_BATCH - len(running)
        batch = running + [waiting.popleft() for _ in range(min(room, len(waiting)))]
        counted = [entry for entry in batch if entry[3]]
        running = []
        for (row, position, _, _), token in zip(counted, context.decode(batch), strict=True):
            times.note(row)
            num_left[row] -= 1
            if num_left[row]:
                running.append((row, position + 1, token, True))


if __name__ == "__main__":
    run(load)
