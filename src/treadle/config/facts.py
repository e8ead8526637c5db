"""What configuration must know of a model: numbers out of its file's head. Reads no file."""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.config.step_estimate import StepWidths

Attention = Literal["mha", "mla", "none"]


class KVGroupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of a model that share block tables."""

    values_per_token: int
    """Numbers in K and V of the group's layers for one token."""
    window: int | None = None
    """Tokens that a token sees, itself included; None sees all."""
    kv_heads: int = 1
    """Among which devices can share the numbers; 1 where a latent vector serves all heads."""

    def values_on(self, devices: int) -> int:
        """Of them, those that each of so many tensor-parallel devices holds."""
        return self.values_per_token * -(-self.kv_heads // devices) // self.kv_heads


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A model as its file describes it."""

    max_positions: int
    """The window it was made for, in tokens."""
    kv_groups: tuple[KVGroupFacts, ...]
    weights_bytes: int
    step_bytes: int | None = None
    """What the largest step takes beside weights and KV, as the trial before KV is allocated
    measured it; None before the trial."""
    widths: StepWidths | None = None
    """By which a step is estimated on devices that are not here; None where they are not known."""
    name: str = ""
    architecture: str = ""
    weight_type: str = ""
    """The type that most bytes of its weights have, as the file's format calls it."""
    quantised: bool = False
    """Whether that type is blocks of integers with scales."""
    attention: Attention = "mha"
    """mha: a K and a V for each KV head; mla: one latent for all heads."""
    experts: int = 0
    """Feed-forward blocks that a layer chooses from; 0 where there is one for all tokens."""
    speculators: str | None = None
    """The method that the checkpoint's `speculators_config` names."""
    kv_checkpoint_type: str | None = None
    """The type that the checkpoint wants K and V stored in."""

    def values_on(self, devices: int) -> int:
        """Numbers in K and V of a token on each of so many devices, of all groups."""
        return sum(group.values_on(devices) for group in self.kv_groups)
