"""A GGUF file as a folder of bfloat16 safetensors, for engines that read no GGUF, such as vLLM.

    PYTHON benchmarks/to_folder.py MODEL.gguf FOLDER

Runs with the Python of an environment that has transformers, PyTorch, gguf and accelerate.
"""

from __future__ import annotations

import sys
from pathlib import Path

import safetensors.torch
import torch
import transformers


def convert(file: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    place = {"gguf_file": file.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, dtype=torch.bfloat16, **place
    )
    config = model.config.to_dict()
    config.pop("quantization_config", None)  # the weights are no longer quantised
    type(model.config).from_dict(config).save_pretrained(folder)
    tied = model.config.tie_word_embeddings
    weights = {
        name: tensor.to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    transformers.AutoTokenizer.from_pretrained(file.parent, **place).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
