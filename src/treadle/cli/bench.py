"""`treadle bench`: what is measured, one module per subcommand. Measures nothing itself."""

from __future__ import annotations

import click

from treadle.cli.group import Commands

MEMBERS = {
    "compare-presets": "treadle.cli.bench_compare_presets",
    "latency": "treadle.cli.bench_latency",
    "profile": "treadle.cli.bench_profile",
    "serve": "treadle.cli.bench_serve",
    "startup": "treadle.cli.bench_startup",
    "throughput": "treadle.cli.bench_throughput",
}
"""Subcommand → the module that defines a click command named like the module."""


@click.command(cls=Commands, members=MEMBERS)
def bench() -> None:
    """Measure the engine, or any OpenAI-compatible server."""
