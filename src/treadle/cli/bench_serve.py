"""`treadle bench serve`: options, the bar, the table. What is measured stands in `bench`."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any, get_args

import click

from treadle.bench.workloads import DEFAULTS, Name

_COUNT = click.IntRange(min=1)


@click.command("serve")
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="The server.")
@click.option("--model", help="Name that the server knows; by default its first.")
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Sent as bearer token.")
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="A .gguf file or folder; for servers without /tokenize, and for all of the vocabulary.",
)
@click.option(
    "--workload", type=click.Choice(get_args(Name)), default="concurrent", show_default=True
)
@click.option("--num-requests", "--num-prompts", type=_COUNT, help="Conversations for multi-turn.")
@click.option("--concurrency", "--max-concurrency", type=_COUNT, help="Most requests at once.")
@click.option(
    "--rate",
    "--request-rate",
    type=click.FloatRange(min=0, min_open=True),
    help="Requests per second, at random times; by default all at once.",
)
@click.option(
    "--input-len", "--random-input-len", type=_COUNT, help="Tokens of each prompt or turn."
)
@click.option("--output-len", "--random-output-len", type=_COUNT, help="Tokens of each answer.")
@click.option("--prefix-len", type=_COUNT, help="Tokens that all prompts share (shared-prefix).")
@click.option("--turns", type=_COUNT, help="Of each conversation (multi-turn).")
@click.option("--seed", type=click.IntRange(min=0), help="Of the prompts; by default a new one.")
@click.option(
    "--warmup", type=click.IntRange(min=0), default=1, show_default=True, help="Requests before."
)
@click.option("--cached-prefix", is_flag=True, help="Send the shared prefix ahead (shared-prefix).")
@click.option("--constrained", is_flag=True, help="Ask for answers in JSON, by a schema.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds for one answer.",
)
@click.option(
    "--goodput", multiple=True, metavar="METRIC:MS …", help="Limits on ttft, tpot or e2el."
)
@click.argument("limits", nargs=-1, metavar="[METRIC:MS]...")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write everything there."
)
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Write a picture there.")
def bench_serve(**given: Any) -> int:
    """Measure any OpenAI-compatible server."""
    from treadle.bench.drive import Plan
    from treadle.bench.figures import failures, parse_limits, show
    from treadle.bench.plot import require_matplotlib, write_plot
    from treadle.bench.report import write_json
    from treadle.bench.serve import Server, measure

    if given["limits"] and not given["goodput"]:
        raise click.UsageError(f"Got unexpected extra argument ({given['limits'][0]})")
    limits = parse_limits((*given["goodput"], *given["limits"]))
    plan = Plan(
        workload=_workload(given),
        num_warmup=given["warmup"],
        cached_prefix=given["cached_prefix"],
        constrained=given["constrained"],
        timeout_s=given["timeout"],
    )
    if given["plot_path"]:
        require_matplotlib()
    server = Server(
        url=given["url"],
        model=given["model"],
        api_key=given["api_key"],
        tokenizer=given["tokenizer"],
    )
    from tqdm import tqdm

    with tqdm(total=plan.workload.num_answers, unit="req", disable=None, leave=False) as bar:
        report = asyncio.run(measure(server, plan, limits, bar.update))
    asked = report.server
    kind = plan.workload.name
    click.echo(f"{asked.model} at {asked.url}: {kind}, seed {plan.workload.seed}, {asked.prompts}")
    click.echo("\n".join(show(report.figures)))
    if given["json_path"]:
        write_json(given["json_path"], report)
    if given["plot_path"]:
        write_plot(given["plot_path"], report)
    return 1 if failures(report.requests) else 0


def _workload(given: dict[str, Any]) -> Any:
    from treadle.bench.workloads import workload
    from treadle.errors import InvalidRequest

    name: Name = given["workload"]
    if given["cached_prefix"] and not DEFAULTS[name].prefix_len:
        raise InvalidRequest(f"--cached-prefix has no meaning for {name}, only for shared-prefix")
    fields = (
        "num_requests",
        "concurrency",
        "rate",
        "input_len",
        "output_len",
        "prefix_len",
        "turns",
    )
    seed = secrets.randbelow(2**31) if given["seed"] is None else given["seed"]
    return workload(name, seed=seed, **{field: given[field] for field in fields})
