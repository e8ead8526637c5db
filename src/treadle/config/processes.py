"""Into which processes a server is split: what each preset would have, and what a choice costs.

Decided from settings alone, since processes start before the model is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from treadle.config.settings import EngineSettings, Layout, PresetName
from treadle.errors import StartError

BY_PRESET: Mapping[PresetName, Layout] = {
    "treadle": "api+engine",
    "vllm": "api+engine",
    "sglang": "http+scheduler+detokenizer",
    "trtllm": "proxy+worker",
}


def layout(user: EngineSettings) -> Layout:
    """A server's. Raises StartError for what does not go together."""
    asked, workers = user.runtime.processes, user.runtime.num_postprocess_workers
    chosen = asked or BY_PRESET[user.preset]
    if workers and chosen != "proxy+worker":
        raise StartError(
            f"num_postprocess_workers is {workers}; processes is {chosen}, and only proxy+worker"
            " has such workers"
        )
    return chosen


def num_text_workers(user: EngineSettings) -> int:
    """How many processes make texts in the API's place."""
    if layout(user) == "http+scheduler+detokenizer":
        return 1
    return user.runtime.num_postprocess_workers or 0


def described(chosen: str, num_workers: int) -> str:
    """For people: which processes there are, and what crosses between them."""
    if chosen == "in-process":
        return "one: the caller's, with the loop in a thread of its own"
    if chosen == "http+scheduler+detokenizer":
        return "three: HTTP (templates, tokens), scheduler (loop, kernels), detokenizer (texts)"
    if num_workers:
        return (
            f"{2 + num_workers}: proxy (HTTP, templates, tokens), worker (loop, kernels),"
            f" {num_workers} for texts"
        )
    ends = ("proxy", "worker") if chosen == "proxy+worker" else ("API", "engine")
    return f"two: {ends[0]} (HTTP, templates, texts) and {ends[1]} (loop, kernels)"
