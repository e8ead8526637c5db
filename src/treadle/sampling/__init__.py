"""From logits to a token: edits of single logits, the choice, its log-probability."""
