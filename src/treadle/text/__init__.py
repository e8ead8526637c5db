"""Text on one side, token ids on the other: tokenizer, chat templates, decoding, stop strings.

Reaches the engine only through `wire`.
"""
