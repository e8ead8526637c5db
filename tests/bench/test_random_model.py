"""Files of random weights: what the gguf package reads in them, and that they run."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks.random_model import SCALES, Shape, write_model
from tests.tiny import VOCAB_SIZE, tiny_llama
from treadle import LLM, SamplingParams

SHAPE = Shape(layers=2, hidden=256, feed_forward=512, heads=4, kv_heads=2, context=128)


@pytest.mark.parametrize("kind", SCALES)
def test_a_random_model(tmp_path: Path, kind: gguf.GGMLQuantizationType) -> None:
    path = tmp_path / "random.gguf"
    write_model(path, SHAPE, kind, tiny_llama("q8_0", tmp_path))
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert tensors["token_embd.weight"].shape.tolist() == [256, VOCAB_SIZE]
    for name in ("blk.0.attn_k.weight", "blk.1.ffn_down.weight"):
        tensor = tensors[name]
        assert tensor.tensor_type is kind
        values = gguf.dequantize(tensor.data, kind)
        k = values.shape[1]
        assert 0.3 < values.std() * k**0.5 < 3
        assert abs(values.mean()) < values.std()
    assert (np.asarray(tensors["output_norm.weight"].data) == 1).all()
    with LLM(str(path), threads=1) as llm:
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        answer = llm.generate("The weaver", params, use_tqdm=False)[0].outputs[0]
        assert len(answer.token_ids) == 4
