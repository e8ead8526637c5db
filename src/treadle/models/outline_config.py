"""An outline from a config.json alone: the sizes of the weights follow from the widths.

Norms and biases count as far as they matter: the sum is within a thousandth of the model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from treadle.errors import ModelFileError
from treadle.models.config_card import CONFIG_KEYS
from treadle.models.families import CONFIG_FAMILIES
from treadle.models.family import Sizes
from treadle.models.fields import Fields
from treadle.models.outline import NOTHING, Amount, LayerOutline, Outline, Share
from treadle.models.outline_facts import MORE_CONFIG_KEYS, TokenFacts, token_facts
from treadle.models.weight_formats import FORMATS, WeightFormat, num_bytes

_DTYPES: Mapping[str, Literal["f32", "f16", "bf16"]] = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
}
_UNGATED = ("gpt2", "gptj", "gpt_neox", "falcon", "opt", "bloom", "starcoder2", "phi")
"""Feed-forward blocks of these have no gate."""


def outline_from_config(
    config: Mapping[str, Any], *, name: str, weight_format: WeightFormat | None = None
) -> Outline:
    """In the format that the file names, or another. Raises ModelFileError naming the field."""
    config = _of_text(config)
    model_type = config.get("model_type")
    family = CONFIG_FAMILIES.get(model_type) if isinstance(model_type, str) else None
    known = {**family.taken_for_granted, **config} if family else config
    keys = {**CONFIG_KEYS, **MORE_CONFIG_KEYS, **(family.keys if family else {})}
    fields = Fields(known, keys, "config.json: field")
    layers, hidden, heads = (fields.count(fact) for fact in ("layers", "hidden", "heads"))
    sizes = Sizes(layers, hidden, heads, fields.count("head_dim", hidden // heads))
    facts = token_facts(fields, sizes, family)
    dtype = _dtype(fields)
    layer_format = weight_format or _quantised(fields) or dtype
    return _Weights(fields, sizes, layer_format, _plain(weight_format) or dtype).outline(
        facts, name, dtype
    )


def _plain(weight_format: WeightFormat | None) -> WeightFormat | None:
    """Embeddings and heads stay as they are where the layers are quantised."""
    return weight_format if weight_format in _DTYPES.values() else None


class _Weights:
    """The weights of one configuration, in one format."""

    def __init__(
        self, fields: Fields, sizes: Sizes, layers: WeightFormat, others: WeightFormat
    ) -> None:
        self._fields = fields
        self._sizes = sizes
        self._layers = layers
        self._others = others

    def outline(
        self, facts: TokenFacts, name: str, dtype: Literal["f32", "f16", "bf16"]
    ) -> Outline:
        fields, hidden = self._fields, self._sizes.hidden
        embed = self._other(fields.count("vocab_size") * hidden)
        tied = fields.flag("tie_word_embeddings", False)
        layers = tuple(
            self._layer(facts, layer, window) for layer, window in enumerate(facts.windows)
        )
        learned = fields.text("model_type", "") == "gpt2"
        positions = fields.count("max_positions")
        return Outline(
            name=name,
            architecture=fields.text("model_type", "unknown"),
            source=f"config.json, layers in {self._layers}",
            max_positions=positions,
            dtype=dtype,
            layers=layers,
            embed=embed,
            head=NOTHING if tied else embed,
            rest=self._other(hidden * (1 + positions * learned)),
            notes=facts.notes + _other_senses(fields),
            weight_type=self._layers,
            widths=(hidden, self._step_ffn(), fields.count("vocab_size")),
        )

    def _layer(self, facts: TokenFacts, layer: int, window: int | None) -> LayerOutline:
        weights = dict(self._attention(facts))
        feed_forward, num_experts = self._feed_forward(layer)
        for share, values in feed_forward.items():
            weights[share] = weights.get(share, 0) + values
        copied = weights.pop("copied", 0)
        amounts: dict[Share, Amount] = {
            share: Amount(values, num_bytes(self._layers, values))
            for share, values in weights.items()
        }
        amounts["copied"] = self._other(copied + 2 * self._sizes.hidden)
        return facts.layer(window, num_experts, amounts)

    def _attention(self, facts: TokenFacts) -> dict[Share, int]:
        hidden, heads = self._sizes.hidden, self._sizes.heads
        if facts.value_dim:
            q, out = heads * facts.key_dim, heads * facts.value_dim
            kv = facts.kv_heads * (facts.key_dim + facts.value_dim)
            return {"split": hidden * (q + out), "kv": hidden * kv}
        fields = self._fields
        latent, rope = fields.count("latent_dim"), fields.count("latent_rope_dim")
        plain, value = fields.count("qk_nope_head_dim"), fields.count("value_dim")
        q_rank = fields.optional_count("q_lora_rank")
        q_width = heads * (plain + rope)
        # Down to the latent vectors every device goes by itself, up from them each for its heads.
        split = latent * heads * (plain + value) + heads * value * hidden
        split += (q_rank or hidden) * q_width
        return {"split": split, "copied": hidden * (latent + rope + (q_rank or 0))}

    def _feed_forward(self, layer: int) -> tuple[dict[Share, int], int]:
        fields, hidden = self._fields, self._sizes.hidden
        experts = self._experts(layer)
        matrices = 2 if fields.text("model_type", "") in _UNGATED else 3
        if not experts:
            width = fields.count("ffn", 4 * hidden)
            return {"split": matrices * hidden * width}, 0
        width = fields.count("expert_ffn", fields.count("ffn"))
        shared = fields.optional_count("shared_expert_intermediate_size")
        if shared is None:
            shared = width * (fields.optional_count("shared_experts") or 0)
        values: dict[Share, int] = {
            "split": 3 * hidden * shared,
            "copied": hidden * experts,
            "experts": 3 * hidden * width * experts,
        }
        return values, experts

    def _step_ffn(self) -> int:
        """Of the widest block that a token passes through, all its experts together."""
        fields = self._fields
        dense = fields.count("ffn", 4 * self._sizes.hidden)
        if not fields.optional_count("experts"):
            return dense
        width = fields.count("expert_ffn", dense)
        each = fields.optional_count("experts_used") or 1
        each += fields.optional_count("shared_experts") or 0
        return max(dense if self._experts(0) == 0 else 0, width * each)

    def _experts(self, layer: int) -> int:
        """How many a layer has; 0 where all tokens pass through one block."""
        fields = self._fields
        count = fields.optional_count("experts")
        dense_first = fields.optional_count("first_k_dense_replace") or 0
        step = fields.optional_count("expert_layer_step") or 1
        step = fields.optional_count("moe_layer_freq") or step if dense_first else step
        if not count or layer < dense_first or layer in fields.whole_numbers("dense_layers"):
            return 0
        return count if dense_first or (layer + 1) % step == 0 else 0

    def _other(self, values: int) -> Amount:
        return Amount(values, num_bytes(self._others, values))


def _other_senses(fields: Fields) -> tuple[str, ...]:
    """Encoders beside the language model, whose sizes their own configuration hides."""
    found = [sense for sense in ("vision", "audio") if fields.value(f"{sense}_config") is not None]
    return tuple(f"the weights of its {sense} encoder are not counted" for sense in found)


def _of_text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Models that also see have the language model's configuration inside theirs."""
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, Mapping) else config


def _dtype(fields: Fields) -> Literal["f32", "f16", "bf16"]:
    named = fields.value("dtype") or fields.value("torch_dtype")
    return _DTYPES.get(named, "bf16") if isinstance(named, str) else "bf16"


def _quantised(fields: Fields) -> WeightFormat | None:
    section = fields.section("quantization_config")
    if section is None:
        return None
    method = section.text("quant_method", "unknown")
    bits = section.value("bits") or section.value("w_bit")
    groups = section.value("config_groups")
    if isinstance(groups, Mapping) and groups:
        weights = next(iter(groups.values())).get("weights") or {}
        bits = weights.get("num_bits")
        if weights.get("type") == "float" and bits == 8:
            return "fp8"
    if method in ("fp8", "fbgemm_fp8", "mxfp4"):
        return "mxfp4" if method == "mxfp4" else "fp8"
    if section.value("load_in_4bit") or bits == 4:
        return "int4"
    if section.value("load_in_8bit") or bits == 8:
        return "int8"
    raise ModelFileError(
        f"config.json: field 'quantization_config' names the method {method!r}, whose sizes are not"
        f" known here; name a weight format: {', '.join(FORMATS)}"
    )
