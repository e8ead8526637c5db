"""How long a request may be."""

from __future__ import annotations

from treadle.config.rules.asked import asked_for
from treadle.config.view import Choice, View
from treadle.errors import StartError


def max_model_len(see: View) -> Choice:
    asked, most = see.user.model.max_model_len, see.model.max_positions
    if asked is None:
        return Choice(most, "model card", f"the model's window is {most} tokens")
    if asked > most:
        raise StartError(f"max_model_len is {asked}; the model's window is {most} tokens")
    return asked_for(see, "max_model_len", asked, f", of the model's {most}")
