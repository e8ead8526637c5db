"""What computes: kernels, threads, and what rules tokens out."""

from __future__ import annotations

from treadle.config.presets import wish
from treadle.config.rules.asked import asked_for, chosen
from treadle.config.view import Choice, View
from treadle.errors import StartError


def backend(see: View) -> Choice:
    asked = see.user.runtime.backend
    if asked is None and see.device.kind == "cuda":
        why = "there are no kernels for CUDA devices yet; these run on the host"
        return Choice("native", "data structure", why)
    return chosen(see, "backend", asked)


def isa(see: View) -> Choice:
    if see.settled.backend == "torch":
        return Choice("none", "data structure", "the torch backend has kernels of its own")
    asked = see.user.runtime.isa
    if asked is not None:
        return asked_for(see, "isa", asked)
    here = see.machine.variants
    if not here:
        return Choice("none", "hardware", "the native kernels are not built on this machine")
    return Choice(here[0], "hardware", f"the best of {', '.join(here)}, which this processor runs")


def threads(see: View) -> Choice:
    asked = see.user.runtime.threads
    if asked is not None:
        return asked_for(see, "threads", asked)
    cores = see.machine.cores
    return Choice(cores, "hardware", f"{cores} cores are open to this process")


def context_form(see: View) -> Choice:
    asked = see.user.runtime.context_form
    if see.settled.backend == "torch":
        return chosen(see, "context_form", asked)
    if asked not in (None, "block-table"):
        raise StartError(
            f"context_form is {asked}, which needs backend torch: the native kernels read block"
            " tables"
        )
    return Choice("block-table", "data structure", "the native kernels read block tables")


def grammar_backend(see: View) -> Choice:
    asked = see.user.runtime.grammar_backend
    if asked == "auto":
        return asked_for(
            see,
            "grammar_backend",
            wish(see, "grammar_backend", of="treadle").value,
            ": the one that needs no PyTorch",
        )
    return chosen(see, "grammar_backend", asked)
