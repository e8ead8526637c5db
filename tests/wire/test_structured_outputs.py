"""What a constraint's parameters mean together, and that nothing of them is ignored."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.errors import InvalidRequest
from treadle.wire.messages import Generate
from treadle.wire.routes import Routes
from treadle.wire.sampling_params import SamplingParams
from treadle.wire.structured_outputs import StructuredOutputsParams


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"regex": "a", "disable_any_whitespace": True},
            "goes with json or json_object, not regex",
        ),
        ({"choice": ["a"], "whitespace_pattern": " "}, "goes with json or json_object, not choice"),
        (
            {"json_object": True, "disable_additional_properties": True},
            "disable_additional_properties goes with json, not json_object",
        ),
    ],
)
def test_an_option_without_a_meaning_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        StructuredOutputsParams(**given)


def test_a_constraint_is_made_once() -> None:
    params = StructuredOutputsParams(json={"type": "boolean"}, disable_additional_properties=True)
    assert params.constraint is params.constraint


def test_who_makes_texts_is_not_told_the_constraint() -> None:
    constraint = StructuredOutputsParams(regex="a" * 1000).constraint
    message = Generate(
        request_id="r", prompt=[1], params=SamplingParams(), seed=0, constraint=constraint
    )
    ((told,),) = Routes(1).admit([message])
    assert isinstance(told, Generate)
    assert told.constraint is None
