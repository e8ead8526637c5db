"""Every comparison of docs/performance.md, one after the other, and the page of them.

    python -m benchmarks.publish PEERS [--models FOLDER] [--only gemma] [--quick]

PEERS is a folder as benchmarks/README.md lays it out; an engine that is missing there is left out
and told. The models in other forms are expected in --models; random ones are written there when
their turn comes, and removed after it. Parts that are done already are kept: --only measures again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks import performance, tasks
from benchmarks.compare import File, Rounds, compare
from benchmarks.peers import Peer
from benchmarks.tasks import Task

SLOW = ("vllm", "transformers", "llama_cpp:q4_1")
"""Start once: each takes five to ten minutes for one round."""


class Part(NamedTuple):
    key: str
    title: str
    model: str
    peers: dict[str, str]
    """Name → where, below the folder of peers."""
    forms: dict[str, str]
    """Name → its own form of the model, below the folder of models."""
    tasks: Sequence[Task]
    rounds: int = 3
    random: tuple[str, str] | None = None
    """Shape and type of a model to be written for it."""


LEAN = "treadle/bin/python"
"""An environment of treadle alone; without it ours is the treadle of this Python."""

OURS = {"treadle": LEAN, "treadle_engine": LEAN}
OPENVINO, LLAMA = "openvino/bin/python", "node/node_modules"

SMOLLM = Part(
    "smollm2",
    "SmolLM2 135M, Q4_1",
    "demo",
    {
        **OURS,
        "openvino_genai:int4": OPENVINO,
        "openvino_genai:int8": OPENVINO,
        "llama_cpp:q4_0": LLAMA,
        "llama_cpp:q4_1": LLAMA,
        "vllm": "vllm/bin/python",
        "transformers": "transformers/bin/python",
    },
    {
        "openvino_genai:int4": "smollm2-135m-ov-int4",
        "openvino_genai:int8": "smollm2-135m-ov-int8",
        "llama_cpp:q4_0": "smollm2-135m-q4_0.gguf",
        "vllm": "smollm2-135m-bf16",
        "transformers": "smollm2-135m-bf16",
    },
    tasks.ALL,
)

GEMMA = Part(
    "gemma",
    "Gemma 3 270M, Q4_K_M",
    "gemma",
    {**OURS, "llama_cpp": LLAMA},
    {},
    (tasks.stream(), tasks.prefill(512, 3), tasks.streams()),
)


def _random(shape: str, kind: str) -> Part:
    """One stream alone: what the memory's speed decides."""
    return Part(
        f"{shape}-{kind}",
        f"Random weights of Llama's {shape.upper()} shape, {kind.upper()}",
        f"{shape}-{kind}.gguf",
        {"treadle_engine": LEAN, "llama_cpp": LLAMA},
        {},
        (tasks.stream(2, 32, 32),),
        rounds=2,
        random=(shape, kind),
    )


PARTS = [
    SMOLLM,
    GEMMA,
    *(_random(shape, kind) for shape in ("1b", "8b") for kind in ("q4_0", "q8_0")),
]


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--models", type=click.Path(path_type=Path), default=Path("build/models"))
@click.option("--work", type=click.Path(path_type=Path), default=Path("build/performance"))
@click.option("--out", type=click.Path(path_type=Path), default=Path("docs"), show_default=True)
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--only", multiple=True, type=click.Choice([one.key for one in PARTS]))
@click.option("--quick", is_flag=True, help="All in little, to see that it runs.")
def main(folder: Path, models: Path, work: Path, out: Path, **given: Any) -> None:
    """Measure against the engines in FOLDER, then write the page."""
    models.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    quick, only, threads = given["quick"], given["only"], given["threads"]
    for part in PARTS:
        path = work / f"{part.key}.json"
        if part.key in only or (not only and not path.exists()):
            _measure(part, path, folder, models, threads=threads, quick=quick)
    startup = work / "startup.json"
    if not startup.exists():
        repeat = "1" if quick else "5"
        _run("treadle.cli.main", "bench", "startup", "demo", "--repeat", repeat, "--json", startup)
    found = [path for part in PARTS if (path := work / f"{part.key}.json").exists()]
    arguments = [*map(str, found), "--startup", str(startup), "--out", str(out)]
    performance.main(arguments, standalone_mode=False)


def _measure(
    part: Part, path: Path, folder: Path, models: Path, *, threads: int, quick: bool
) -> None:
    click.echo(f"== {part.title}", err=True)
    model = part.model
    if part.random is not None:
        model = str(models / part.model)
        less = ["--layers", "1"] if quick else []
        _run("benchmarks.random_model", *part.random, model, *less)
    chosen = [one.reduced() for one in part.tasks] if quick else part.tasks
    partial = path.with_suffix(".part")
    compare(
        _peers(part, folder, models),
        chosen,
        model=model,
        rounds=Rounds(1 if quick else part.rounds, dict.fromkeys(SLOW, "1")),
        threads=threads,
        file=File(partial, part.title, f"python -m benchmarks.publish PEERS --only {part.key}"),
    )
    partial.rename(path)
    if part.random is not None:
        Path(model).unlink()


def _peers(part: Part, folder: Path, models: Path) -> list[Peer]:
    found = []
    for name, where in part.peers.items():
        form = models / part.forms[name] if name in part.forms else None
        place = folder / where
        missing = [one for one in (place, form) if one is not None and not one.exists()]
        if where == LEAN and missing:
            found.append(Peer.parse(name))
        elif missing:
            click.echo(f"{name} is left out: {missing[0]} does not exist", err=True)
        else:
            forms = {} if form is None else {name: str(form)}
            found.append(Peer.parse(f"{name}={place}").reading(forms))
    return found


def _run(module: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-m", module, *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
