"""In which order requests start, and what their priorities do."""

from __future__ import annotations

from treadle.config.rules.asked import asked_for, chosen
from treadle.config.view import Choice, View


def order(see: View) -> Choice:
    asked = see.user.order.order
    if asked is None and see.user.order.priorities == "count":
        return Choice("priority", "data structure", "priorities count, and so decide")
    return chosen(see, "order", asked)


def priorities(see: View) -> Choice:
    asked = see.user.order.priorities
    if asked is None and see.settled.order == "priority":
        return Choice("count", "data structure", "the order goes by them")
    return chosen(see, "priorities", asked)


def missing_priority(see: View) -> Choice:
    asked = see.user.order.missing_priority
    if asked is None and see.user.preset == "sglang":
        return Choice("worst", "preset", "SGLang's: whoever says nothing comes last")
    return chosen(see, "missing_priority", asked)


def order_seed(see: View) -> Choice:
    asked = see.user.order.order_seed
    if asked is None:
        return Choice(0, "default", "the same requests are shuffled alike in every run")
    return asked_for(see, "order_seed", asked)
