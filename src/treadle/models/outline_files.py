"""An outline from the headers of model files: every tensor's size as it is, no tensor's bytes.

Tensors are told apart by name, as Hugging Face and llama.cpp spell them, whatever the architecture.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from treadle.errors import ModelFileError
from treadle.models.families import GGUF_FAMILIES
from treadle.models.family import Sizes
from treadle.models.gguf import GGUFFile
from treadle.models.gguf_card import gguf_fields
from treadle.models.mapped import Extent
from treadle.models.outline import NOTHING, Amount, LayerOutline, Outline, Share
from treadle.models.outline_config import outline_from_config
from treadle.models.outline_facts import MORE_GGUF_KEYS, token_facts
from treadle.models.safetensors import (
    CONFIG,
    SafetensorsFolder,
    holds_all_weights,
    read_json_object,
)
from treadle.models.source import name_of_path
from treadle.models.weight_formats import WeightFormat, num_bytes

_LAYER = re.compile(r"(?:^|\.)(?:layers|blk|h)\.(\d+)\.")
_EMBED = re.compile(r"embed_tokens\.|token_embd\.|(^|\.)wte\.")
_HEAD = re.compile(r"lm_head\.|^output\.weight")
_EXPERTS = re.compile(r"\.experts\.|_exps\.|ffn_(gate|up|down)\.\d+\.")
_COPIED = re.compile(
    r"norm|\.gate\.weight|ffn_gate_inp|q_a_proj|kv_a_proj|attn_q_a\.|attn_kv_a|bias$"
)
_KV = re.compile(r"[._]([kv]_proj|attn_[kv])\.")
_FUSED = re.compile(r"qkv_proj\.|attn_qkv\.|c_attn\.")
_OTHER_SENSES = re.compile(r"(^|\.)(vision|visual|audio|multi_modal|mm\.|v\.blk)")


def outline_of(path: Path, weight_format: WeightFormat | None = None) -> Outline:
    """Of a .gguf file, a model's directory, or a config.json. With a format, what the weights would
    take in it."""
    try:
        return _outline(path, weight_format)
    except ModelFileError as error:
        if not error.message.startswith(f"{CONFIG}:"):
            raise
        where = path / CONFIG if path.is_dir() else path
        raise ModelFileError(f"{where}{error.message.removeprefix(CONFIG)}") from None


def _outline(path: Path, weight_format: WeightFormat | None) -> Outline:
    if path.is_dir():
        return _of_folder(path, weight_format)
    if path.suffix == ".json":
        name = path.stem if path.name != CONFIG else path.resolve().parent.name
        return outline_from_config(read_json_object(path), name=name, weight_format=weight_format)
    with closing(GGUFFile.open(path)) as file:
        return _of_gguf(file, weight_format)


def _of_folder(path: Path, weight_format: WeightFormat | None) -> Outline:
    config, name = read_json_object(path / CONFIG), path.resolve().name
    stated = outline_from_config(config, name=name, weight_format=weight_format)
    # What a packed tensor's values are, only its method knows; so in another format the sizes
    # follow from the configuration.
    if weight_format is not None or not holds_all_weights(path):
        return stated
    with closing(SafetensorsFolder.open(path)) as folder:
        sizes = {name: _size(name, extent) for name, extent in folder.extents().items()}
    return _Sorted(sizes, stated).outline("the headers of its safetensors files")


def _of_gguf(file: GGUFFile, weight_format: WeightFormat | None) -> Outline:
    fields = gguf_fields(file.metadata, MORE_GGUF_KEYS)
    architecture = fields.text("architecture")
    family = GGUF_FAMILIES.get(architecture)
    heads, hidden = fields.count("heads"), fields.count("hidden")
    sizes = Sizes(fields.count("layers"), hidden, heads, fields.count("head_dim", hidden // heads))
    facts = token_facts(fields, sizes, family)
    stated = Outline(
        name=name_of_path(file.path),
        architecture=architecture,
        source="",
        max_positions=fields.count("max_positions"),
        dtype="f16",
        layers=tuple(
            facts.layer(window, fields.optional_count("experts") or 0, {})
            for window in facts.windows
        ),
        embed=NOTHING,
        head=NOTHING,
        rest=NOTHING,
        notes=facts.notes,
    )
    extents = file.extents()
    amounts = {name: _size(name, extent) for name, extent in extents.items()}
    if weight_format is not None:
        amounts = {
            name: _in_format(name, amount, len(extents[name].shape), weight_format)
            for name, amount in amounts.items()
        }
    source = f"its header, matrices in {weight_format}" if weight_format else "its header"
    return _Sorted(amounts, stated).outline(source)


def _size(name: str, extent: Extent) -> Amount:
    values = math.prod(extent.shape)
    if values and not extent.num_bytes:
        raise ModelFileError(
            f"tensor '{name}' has type {extent.type_name}, whose size is not known here"
        )
    return Amount(values, extent.num_bytes)


def _in_format(name: str, amount: Amount, axes: int, weight_format: WeightFormat) -> Amount:
    plain = weight_format in ("f32", "bf16", "f16")
    if axes < 2 or not (plain or _LAYER.search(name)):
        return amount
    return Amount(amount.values, num_bytes(weight_format, amount.values))


class _Sorted:
    """Tensors, told apart by their names. What a layer stores for a token is `stated`."""

    def __init__(self, amounts: Mapping[str, Amount], stated: Outline) -> None:
        self._stated = stated
        self._outside: dict[str, Amount] = {"embed": NOTHING, "head": NOTHING, "rest": NOTHING}
        self._layers: list[dict[Share, Amount]] = [{} for _ in stated.layers]
        self._left_out = NOTHING
        for name, amount in amounts.items():
            self._sort(name, amount)

    def _sort(self, name: str, amount: Amount) -> None:
        found = _LAYER.search(name)
        if found is None or _OTHER_SENSES.search(name):
            place = _outside(name)
            self._outside[place] = self._outside[place].plus(amount)
        elif int(found[1]) < len(self._layers):
            layer = int(found[1])
            for share, part in _shares(name, amount, self._stated.layers[layer]):
                held = self._layers[layer]
                held[share] = held.get(share, NOTHING).plus(part)
        else:
            self._left_out = self._left_out.plus(amount)

    def outline(self, source: str) -> Outline:
        layers = tuple(
            dataclasses.replace(
                layer,
                num_experts=layer.num_experts if "experts" in weights else 0,
                weights=weights,
            )
            for layer, weights in zip(self._stated.layers, self._layers, strict=True)
        )
        notes = self._stated.notes
        if self._left_out.values:
            size = f"{self._left_out.num_bytes / 10**9:.2f} GB"
            notes += (f"{size} of layers that only draft are not counted",)
        return dataclasses.replace(
            self._stated,
            layers=layers,
            source=source,
            notes=notes,
            embed=self._outside["embed"],
            head=self._outside["head"],
            rest=self._outside["rest"],
        )


def _shares(name: str, amount: Amount, layer: LayerOutline) -> Iterator[tuple[Share, Amount]]:
    if _EXPERTS.search(name):
        yield "experts", amount
    elif _COPIED.search(name):
        yield "copied", amount
    elif _KV.search(name):
        yield "kv", amount
    elif _FUSED.search(name):
        columns = layer.heads * layer.key_dim
        kv_columns = layer.kv_heads * (layer.key_dim + layer.value_dim)
        kv = _part(amount, kv_columns, columns + kv_columns)
        yield "kv", kv
        yield "split", Amount(amount.values - kv.values, amount.num_bytes - kv.num_bytes)
    else:
        yield "split", amount


def _part(amount: Amount, share: int, whole: int) -> Amount:
    return Amount(amount.values * share // whole, amount.num_bytes * share // whole)


def _outside(name: str) -> str:
    if _EMBED.search(name):
        return "embed"
    return "head" if _HEAD.search(name) else "rest"
