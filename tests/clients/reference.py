"""A tiny model for clients that score, and its scores by transformers. Runs where treadle's own
tests run: `python -m tests.clients.reference FOLDER`, with [[context, continuation], …] as JSON on
standard input; writes the model and its tokenizer to FOLDER and the scores to standard output.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tokenizers
import torch
from transformers import PreTrainedTokenizerFast

from tests import tiny

TINY = tiny.TinyLlama("f32")


def save_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    tokens, merges = tiny._vocabulary()
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, pairs))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    _, begin, end = tiny.SPECIAL
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=begin, eos_token=end, chat_template=tiny.CHAT_TEMPLATE
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def score(
    model: torch.nn.Module, context: list[int], continuation: list[int]
) -> tuple[float, bool]:
    """The sum of the continuation's log-probabilities, and whether each is the highest."""
    ids = torch.tensor([[*context, *continuation]])
    with torch.no_grad():
        logprobs = model(ids).logits[0, len(context) - 1 : -1].log_softmax(-1)
    chosen = torch.tensor(continuation)
    own = logprobs.gather(1, chosen[:, None]).sum().item()
    return own, bool((logprobs.argmax(-1) == chosen).all())


def main() -> None:
    folder = Path(sys.argv[1])
    tiny.write_tiny(TINY, folder).rename(folder / "tiny.gguf")
    tokenizer = save_tokenizer(folder)
    model = tiny.tiny_reference(TINY)
    scores = []
    for context, continuation in json.load(sys.stdin):
        whole = tokenizer.encode(context + continuation, add_special_tokens=False)
        before = tokenizer.encode(context, add_special_tokens=False)
        assert whole[: len(before)] == before, "no token may span the two"
        scores.append(score(model, before, whole[len(before) :]))
    json.dump(scores, sys.stdout)


if __name__ == "__main__":
    main()
