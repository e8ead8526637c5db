"""Small vocabularies, trained on the corpus: the metadata of GGUF files, and model directories."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

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


# Model directories.

ADDED = (
    tokenizers.AddedToken("<|begin|>", special=True, normalized=False),
    tokenizers.AddedToken("<|end|>", special=True, normalized=False),
    tokenizers.AddedToken("<|eot_id|>", special=True, normalized=False),
    tokenizers.AddedToken("<tool>", normalized=False),
    tokenizers.AddedToken("<mask>", special=True, lstrip=True, normalized=False),
    tokenizers.AddedToken("right", rstrip=True, single_word=True),
)
"""Beyond the model's own tokens, so that their ids depend on their order."""

ADDED_TEXTS = tuple(token.content for token in ADDED)


@functools.cache
def byte_level_json() -> str:
    """tokenizer.json of byte-level BPE with a BOS in its post-processor, as Llama 3 has it."""
    trainee = tokenizers.Tokenizer(models.BPE())
    trainee.normalizer = normalizers.NFC()
    trainee.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainee.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1200, show_progress=False, initial_alphabet=alphabet)
    trainee.train_from_iterator(lines(), trainer)
    trainee.add_tokens([*ADDED])
    trainee.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin|> $A",
                special_tokens=[("<|begin|>", trainee.token_to_id("<|begin|>"))],
            ),
        ]
    )
    return trainee.to_str()


@functools.cache
def sentencepiece_json(kind: str) -> str:
    """tokenizer.json of a SentencePiece vocabulary as the libraries convert it: 'prepend' as Llama
    2 is published, 'metaspace' as newer conversions have it, 'gemma' without a space in front."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *trained_pieces()]
    vocab = {text: token for token, text in enumerate(pieces)}
    merges = [
        (text[:cut], text[cut:])
        for text in trained_pieces()
        for cut in range(1, len(text))
        if text[:cut] in vocab and text[cut:] in vocab
    ]
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if kind == "metaspace":
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        spaces = normalizers.Replace(" ", "▁")
        prepend = [normalizers.Prepend("▁")] if kind == "prepend" else []
        made.normalizer = normalizers.Sequence([*prepend, spaces])
    if kind != "gemma":
        steps.append(decoders.Strip(" ", 1, 0))
    made.decoder = decoders.Sequence(steps)
    made.add_tokens([*ADDED])
    begin, end = (made.token_to_id(text) for text in ("<|begin|>", "<|end|>"))
    made.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A" if kind != "gemma" else "<|begin|> $A <|end|>",
        special_tokens=[("<|begin|>", begin), ("<|end|>", end)],
    )
    return made.to_str()
