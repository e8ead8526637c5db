"""What a model stores for a token, layer by layer, of architectures that run here and of others.

Goes by the same facts for config.json and GGUF metadata. Raises ModelFileError for a layer whose
memory it does not know, rather than guessing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from treadle.models.family import Family, Sizes
from treadle.models.fields import Fields, Keys
from treadle.models.outline import Amount, LayerOutline, Share

MORE_CONFIG_KEYS: Keys = {
    "latent_dim": ("kv_lora_rank",),
    "latent_rope_dim": ("qk_rope_head_dim",),
    "value_dim": ("v_head_dim",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "shared_experts": ("n_shared_experts",),
    "chunk": ("attention_chunk_size",),
}
"""Of architectures that do not run here, beside those that do."""

MORE_GGUF_KEYS: Keys = {
    "latent_dim": ("attention.kv_lora_rank",),
    "latent_rope_dim": ("rope.dimension_count",),
}

_SEES_ALL = ("full_attention", "attention", "global")


@dataclasses.dataclass(frozen=True)
class TokenFacts:
    """What every layer stores for a token, and for how long."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    windows: tuple[int | None, ...]
    notes: tuple[str, ...] = ()

    def layer(
        self, window: int | None, num_experts: int, weights: Mapping[Share, Amount]
    ) -> LayerOutline:
        return LayerOutline(
            heads=self.heads,
            kv_heads=self.kv_heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            window=window,
            num_experts=num_experts,
            weights=weights,
        )


def token_facts(fields: Fields, sizes: Sizes, family: Family | None) -> TokenFacts:
    """`family` is None for an architecture that does not run here."""
    windows = family.windows(fields, sizes) if family else _windows(fields, sizes)
    notes: tuple[str, ...] = ()
    if windows is None:
        windows = (None,) * sizes.layers
        notes = ("its layers' windows are not known here: all count as seeing everything",)
    latent = fields.optional_count("latent_dim")
    if latent is not None:
        key_dim = latent + fields.count("latent_rope_dim")
        return TokenFacts(sizes.heads, 1, key_dim, 0, windows, notes)
    value_dim = fields.count("value_dim", sizes.head_dim)
    kv_heads = fields.count("kv_heads", sizes.heads)
    return TokenFacts(sizes.heads, kv_heads, sizes.head_dim, value_dim, windows, notes)


def _windows(fields: Fields, sizes: Sizes) -> tuple[int | None, ...] | None:
    """As far as the file lists them; None where it has a window and does not say whose."""
    listed = fields.value("layer_types")
    if isinstance(listed, list) and len(listed) == sizes.layers:
        return tuple(_window_of(kind, fields) for kind in listed)
    window = fields.optional_count("window")
    if window is None or not fields.flag("use_window", True):
        return (None,) * sizes.layers
    return None


def _window_of(kind: object, fields: Fields) -> int | None:
    if kind in ("sliding_attention", True):
        return fields.count("window")
    if kind == "chunked_attention":
        return fields.count("chunk")
    if kind in _SEES_ALL or kind is False:
        return None
    raise fields.bad("layer_types", "of layers with full_attention, sliding_attention or chunks")
