"""`treadle bench serve` without its command line: a plan and an address → a report."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from treadle.bench.completion import Measured
from treadle.bench.connection import Address, Connections
from treadle.bench.drive import Plan, drive
from treadle.bench.figures import Figures, figures
from treadle.bench.target import find_target

SCHEMA = 1
"""Raised when a field of the report changes its meaning or goes."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask, and as whom."""

    url: str
    model: str | None = None
    """None: the first that the server names."""
    api_key: str | None = None
    tokenizer: Path | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the server was found to be."""

    url: str
    model: str
    prompts: str
    """"token ids" or "text"."""
    num_units: int
    """Different tokens that prompts are drawn from."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run, enough to compute every figure again."""

    schema: int
    treadle: str
    date: str
    server: Asked
    plan: Plan
    figures: Figures
    requests: list[Measured]


async def measure(
    server: Server, plan: Plan, limits_ms: dict[str, float], progress: Callable[[], object]
) -> Report:
    """Raises StartError when the server cannot be asked at all."""
    connections = Connections(Address(server.url, server.api_key))
    with contextlib.closing(connections):
        target = await find_target(connections, server.model, server.tokenizer)
        began = datetime.now(UTC)
        measurement = await drive(connections, target, plan, progress)
    return Report(
        schema=SCHEMA,
        treadle=importlib.metadata.version("treadle"),
        date=began.isoformat(timespec="seconds"),
        server=Asked(
            url=target.url,
            model=target.model,
            prompts="token ids" if target.ids else "text",
            num_units=len(target.ids or target.words),
        ),
        plan=plan,
        figures=figures(measurement, limits_ms),
        requests=measurement.requests,
    )
