"""A GGUF file of random weights in a given shape: for speed at sizes that nobody wants to download.

    python benchmarks/random_model.py 8b q4_0 8b-q4_0.gguf [--layers 4]

The tokenizer is the demo model's, so prompts work; answers are noise. One tensor is in memory at a
time. Blocks are random bytes with scales that make weights about as large as trained ones. Needs
the `test` extra, for the gguf package.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import click
import gguf
import numpy as np

from treadle.models.demo import demo_path


@dataclasses.dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    context: int = 8192

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


SHAPES = {
    "1b": Shape(layers=16, hidden=2048, feed_forward=8192, heads=32, kv_heads=8),
    "3b": Shape(layers=28, hidden=3072, feed_forward=8192, heads=24, kv_heads=8),
    "8b": Shape(layers=32, hidden=4096, feed_forward=14336, heads=32, kv_heads=8),
}
"""Like Llama 3's, but for the vocabulary, which is the demo's."""

Q = gguf.GGMLQuantizationType

SCALES: dict[Q, dict[int, float]] = {
    Q.Q4_0: {0: 1.0},
    Q.Q4_1: {0: 1.0, 2: -7.5},
    Q.Q5_0: {0: 0.5},
    Q.Q5_1: {0: 0.5, 2: -7.5},
    Q.Q8_0: {0: 0.06},
    Q.Q4_K: {0: 0.03, 2: 0.25},
    Q.Q5_K: {0: 0.015, 2: 0.25},
    Q.Q6_K: {208: 0.004},
}
"""Type → where a block has its f16 scales, and what they are for values of about -8 to 8."""

_POOL_BLOCKS = 1 << 14


class Blocks:
    """Random blocks of one type. Tensors draw from one pool, at random: memory sees no pattern."""

    def __init__(self, kind: Q, rng: np.random.Generator) -> None:
        self.values, size = gguf.GGML_QUANT_SIZES[kind]
        self._rng = rng
        self._pool = rng.integers(0, 256, (_POOL_BLOCKS, size), np.uint8)
        self._kind = kind

    def tensor(self, n: int, k: int) -> np.ndarray:
        """[n, bytes of a row]; values are about 1 / sqrt(k)."""
        if k % self.values:
            raise click.ClickException(f"{k} inputs are no whole blocks of {self.values}")
        for at, size in SCALES[self._kind].items():
            scale = np.array([size / 5 / k**0.5], np.float16)
            self._pool[:, at : at + 2] = scale.view(np.uint8)
        chosen = self._rng.integers(0, _POOL_BLOCKS, n * k // self.values)
        return self._pool[chosen].reshape(n, -1)


def matrices(shape: Shape, vocab_size: int) -> Iterator[tuple[str, int, int]]:
    """Name, outputs, inputs."""
    hidden, kv = shape.hidden, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", vocab_size, hidden
    for layer in range(shape.layers):
        for name, n, k in (
            ("attn_q", hidden, hidden),
            ("attn_k", kv, hidden),
            ("attn_v", kv, hidden),
            ("attn_output", hidden, hidden),
            ("ffn_gate", shape.feed_forward, hidden),
            ("ffn_up", shape.feed_forward, hidden),
            ("ffn_down", hidden, shape.feed_forward),
        ):
            yield f"blk.{layer}.{name}.weight", n, k
    yield "output.weight", vocab_size, hidden


def norms(shape: Shape) -> list[str]:
    layers = range(shape.layers)
    each = [f"blk.{i}.{name}.weight" for i in layers for name in ("attn_norm", "ffn_norm")]
    return [*each, "output_norm.weight"]


def write_model(path: Path, shape: Shape, kind: Q, tokenizer: Path, seed: int = 0) -> None:
    """`tokenizer` is a GGUF file whose tokenizer the model gets."""
    reader = gguf.GGUFReader(tokenizer)
    writer = gguf.GGUFWriter(path, "llama")
    _add_shape(writer, shape)
    _add_tokenizer(writer, reader)
    vocab_size = len(reader.fields["tokenizer.ggml.tokens"].data)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    for name, n, k in matrices(shape, vocab_size):
        row = k // values * size
        writer.add_tensor_info(name, (n, row), np.dtype(np.uint8), n * row, raw_dtype=kind)
    for name in norms(shape):
        count = shape.hidden
        writer.add_tensor_info(name, (count,), np.dtype(np.float32), 4 * count)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    blocks = Blocks(kind, np.random.default_rng(seed))
    for _, n, k in matrices(shape, vocab_size):
        writer.write_tensor_data(blocks.tensor(n, k))
    for _ in norms(shape):
        writer.write_tensor_data(np.ones(shape.hidden, np.float32))
    writer.close()


def _add_shape(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name("random")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)


def _add_tokenizer(writer: gguf.GGUFWriter, reader: gguf.GGUFReader) -> None:
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            of = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, of)


@click.command()
@click.argument("shape", type=click.Choice(sorted(SHAPES)))
@click.argument("kind", type=click.Choice([kind.name.lower() for kind in SCALES]))
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--layers", type=click.IntRange(min=1), help="Other than the shape's.")
@click.option("--seed", default=0, show_default=True)
def main(shape: str, kind: str, path: Path, layers: int | None, seed: int) -> None:
    """Write a model of SHAPE with weights of type KIND to PATH."""
    chosen = SHAPES[shape]
    if layers is not None:
        chosen = dataclasses.replace(chosen, layers=layers)
    write_model(path, chosen, Q[kind.upper()], demo_path(), seed)
    click.echo(f"{path}: {path.stat().st_size / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
