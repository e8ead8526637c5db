"""Into which processes a server is split, and what is refused."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from tests.config.setups import LAPTOP, SMALL
from treadle.config.given import engine_settings
from treadle.config.processes import BY_PRESET, described, layout, num_text_workers
from treadle.config.resolve import resolve
from treadle.config.settings import PresetName
from treadle.errors import StartError


@pytest.mark.parametrize(
    ("given", "chosen", "workers", "count"),
    [
        ({}, "api+engine", 0, "two: API"),
        ({"preset": "vllm"}, "api+engine", 0, "two: API"),
        ({"preset": "sglang"}, "http+scheduler+detokenizer", 1, "three: HTTP"),
        ({"preset": "trtllm"}, "proxy+worker", 0, "two: proxy"),
        ({"preset": "trtllm", "num_postprocess_workers": 3}, "proxy+worker", 3, "5: proxy"),
        ({"preset": "sglang", "processes": "api+engine"}, "api+engine", 0, "two: API"),
    ],
)
def test_what_a_server_is_split_into(
    given: dict[str, object], chosen: str, workers: int, count: str
) -> None:
    settings = engine_settings({"usage": "server", **given})
    assert layout(settings) == chosen
    assert num_text_workers(settings) == workers
    runtime = resolve(settings, SMALL, LAPTOP).runtime
    assert runtime.processes == chosen
    assert runtime.num_postprocess_workers == given.get("num_postprocess_workers", 0)
    assert described(chosen, runtime.num_postprocess_workers).startswith(count)


def test_every_preset_has_one() -> None:
    assert set(BY_PRESET) == set(get_args(PresetName))


def test_in_process_there_is_one() -> None:
    runtime = resolve(engine_settings({"preset": "sglang"}), SMALL, LAPTOP).runtime
    assert (runtime.processes, runtime.num_postprocess_workers) == ("in-process", 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"num_postprocess_workers": 2, "usage": "server"},
            "num_postprocess_workers is 2; processes is api+engine",
        ),
        (
            {"num_postprocess_workers": 1, "preset": "sglang", "usage": "server"},
            "only proxy+worker has such workers",
        ),
        ({"processes": "proxy+worker"}, "only a server has more than the caller's"),
        ({"num_postprocess_workers": 0}, "only a server has any"),
    ],
)
def test_what_does_not_go_together(given: dict[str, object], said: str) -> None:
    with pytest.raises(StartError, match=re.escape(said)):
        resolve(engine_settings(given), SMALL, LAPTOP)
