"""A GGUF model with its matrices in another type: an engine may have faster kernels for that one.

    python benchmarks/requantize.py MODEL.gguf q4_0 OUT.gguf

llama.cpp repacks Q4_0 for its fastest kernels, but not Q4_1. The new weights are those of the old
ones rounded once more, so answers differ a little: it is for speed. Vectors and the embedding, in
whose type heads are kept, stay as they are, and so does a matrix whose rows hold no whole blocks.
Needs the `test` extra, for the gguf package.
"""

from __future__ import annotations

from pathlib import Path

import click
import gguf
import numpy as np

Q = gguf.GGMLQuantizationType

KINDS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "bf16", "f16")
"""What the gguf package can write."""

KEPT = ("token_embd.weight", "output.weight")


def requantize(source: Path, kind: gguf.GGMLQuantizationType, target: Path) -> int:
    """How many tensors changed their type."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture, use_temp_file=True)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in _WRITTEN:
            first = field.types[0]
            of = field.types[-1] if first is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), first, of)
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.name}"])
    num_changed = 0
    for tensor in reader.tensors:
        data, written = tensor.data, tensor.tensor_type
        if _is_changed(tensor, kind):
            values = gguf.dequantize(tensor.data, tensor.tensor_type)
            data, written = gguf.quantize(values, kind), kind
            num_changed += 1
        writer.add_tensor(tensor.name, np.ascontiguousarray(data), raw_dtype=written)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return num_changed


_WRITTEN = ("general.architecture", "general.file_type")


def _is_changed(tensor: gguf.ReaderTensor, kind: gguf.GGMLQuantizationType) -> bool:
    is_matrix = len(tensor.shape) > 1 and tensor.name not in KEPT
    whole = int(tensor.shape[0]) % gguf.GGML_QUANT_SIZES[kind][0] == 0
    return is_matrix and whole and tensor.tensor_type is not kind


@click.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path))
def main(source: Path, kind: str, target: Path) -> None:
    """Write the model in SOURCE with matrices of type KIND to TARGET."""
    num_changed = requantize(source, Q[kind.upper()], target)
    click.echo(f"{target}: {num_changed} matrices, {target.stat().st_size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
