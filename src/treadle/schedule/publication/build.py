"""The publications by name."""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from treadle.schedule.ports import Fence, Schedulable
from treadle.schedule.publication.at_chunk_end import AtChunkEnd, Wait
from treadle.schedule.publication.at_plan import AtPlan
from treadle.schedule.running import Running
from treadle.schedule.strategies import Publication

R = TypeVar("R", bound=Schedulable)


@dataclasses.dataclass(frozen=True)
class Sharing:
    """When a request's prefix is found by others, and how much of one is worth waiting for."""

    publication: str = "at-chunk-end"
    wait_tokens: int = 64


def build_publication(sharing: Sharing, running: Running[R], fence: Fence) -> Publication[R]:
    if sharing.publication == "at-plan":
        return AtPlan(running, fence)
    postpones = sharing.publication == "postpone"
    return AtChunkEnd(running, fence, Wait(sharing.wait_tokens, lets_pass=postpones))
