"""Small vocabularies, trained on the corpus: the metadata of GGUF files, and model directories."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from tests.text.corpus import lines

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

CONTROL_TEXTS = ("<|user|>", "<|end|>", "<unused0>", "<start_of_turn>")
USER_DEFINED_TEXTS = ("<tool>", "</tool>", "\n\n", "\n\n\n", "<to", "[x]")
SPECIAL_TEXTS = (*CONTROL_TEXTS, *USER_DEFINED_TEXTS, "<s>", "</s>", "<unk>", "<0x0A>", "<tool")


@functools.cache
def trained_pieces(size: int = 1800) -> list[str]:
    """Pieces in the order in which training found them, then single characters. Like real ones
    they hold spaces at their start, but for one."""
    trainee = tokenizers.Tokenizer(models.BPE())
    trainee.normalizer = normalizers.Replace(" ", "▁")
    trainee.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, limit_alphabet=600)
    trainee.train_from_iterator(lines(), trainer)
    by_id = sorted(trainee.get_vocab().items(), key=lambda item: item[1])
    pieces = [text for text, _ in by_id if text not in SPECIAL_TEXTS]
    return [
        *(text for text in pieces if len(text) > 1),
        ">▁<",
        *(text for text in pieces if len(text) == 1),
    ]


def sentencepiece(*, gemma: bool, scores: Sequence[float] | None = None) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece vocabulary, laid out like Gemma's or like Llama's."""
    bos, eos = ("<bos>", "<eos>") if gemma else ("<s>", "</s>")
    pieces = trained_pieces()
    runs = [" " * length for length in range(2, 32)] if gemma else []
    if gemma:
        pieces = [text for text in pieces if set(text) != {"▁"} or len(text) == 1]
    groups = [
        (["<pad>", eos, bos], CONTROL),
        (["<unk>"], CONTROL if gemma else UNKNOWN),
        ([*CONTROL_TEXTS], CONTROL),
        ([*USER_DEFINED_TEXTS], USER_DEFINED),
        (runs, USER_DEFINED),
        ([f"<0x{byte:02X}>" for byte in range(256)], BYTE),
        (pieces, NORMAL),
    ]
    tokens = [text for texts, _ in groups for text in texts]
    kinds = [kind for texts, kind in groups for _ in texts]
    first = len(tokens) - len(pieces)
    own = scores or [-float(index) for index in range(len(pieces))]
    return {
        "general.architecture": "gemma3" if gemma else "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [*[-1000.0] * first, *own],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_space_prefix": not gemma,
    }
