"""lm-evaluation-harness: log-likelihoods next to those of transformers, and generated answers.

Its tasks come with the test, since its own take their data from a model hub. Likelihoods are taken
of a tiny model with float weights, so that the two sides can be compared closely.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

from tests.clients.serving import MODEL, ROOT, Serving

QUESTIONS: list[dict[str, Any]] = [
    {"question": "The weaver set the", "choices": [" warp", " threads", " loom"], "answer": 0},
    {"question": "She pressed the other", "choices": [" treadle", " coat"], "answer": 0},
    {"question": "All day", "choices": [" the loom went round", " line of cloth"], "answer": 1},
    {"question": "Up went the", "choices": [" one half", " shuttle ran", "!"], "answer": 1},
]
PAIRS = [(doc["question"], choice) for doc in QUESTIONS for choice in doc["choices"]]

LOGPROB_TOLERANCE = 1e-3
"""Of sums of up to 15 log-probabilities, with K and V in f32; one token more or less is whole units
away."""


def write_lines(path: Path, docs: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    return str(path)


def task(name: str, data: str, **fields: Any) -> dict[str, Any]:
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": data}},
        "test_split": "test",
        **fields,
    }


def evaluate(model: str, args: dict[str, Any], asked: dict[str, Any]) -> Any:
    return lm_eval.simple_evaluate(
        model=model,
        model_args={"max_retries": 1, "timeout": 60, **args},
        tasks=[asked],
        log_samples=True,
        bootstrap_iters=0,
        task_manager=TaskManager(include_defaults=False),  # looking through its own takes a minute
        apply_chat_template=model == "local-chat-completions",
    )


class Tiny:
    """The served tiny model, and what transformers says of PAIRS."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.folder = folder
        done = subprocess.run(
            [python, "-m", "tests.clients.reference", folder],
            input=json.dumps(PAIRS),
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT}/src:{ROOT}"},
            check=True,
        )
        self.expected: list[tuple[float, bool]] = [
            (value, greedy) for value, greedy in json.loads(done.stdout)
        ]
        self.serving = Serving(
            python, folder / "log", "--kv-dtype", "f32", model=str(folder / "tiny.gguf")
        )


@pytest.fixture(scope="module")
def tiny(serving_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    tiny = Tiny(serving_python, tmp_path_factory.mktemp("tiny"))
    try:
        tiny.serving.wait_ready()
        yield tiny
        tiny.serving.wait_idle()
    finally:
        tiny.serving.close()


@pytest.fixture(params=["ids", "text", "remote"])
def tokenizing(request: pytest.FixtureRequest, tiny: Tiny) -> dict[str, Any]:
    """Who tokenizes: the harness, sending ids or text, or the server by /tokenizer_info and
    /tokenize, which spares the harness a copy of the tokenizer."""
    if request.param == "remote":
        return {"tokenizer_backend": "remote", "tokenized_requests": True}
    return {
        "tokenizer_backend": "huggingface",
        "tokenizer": str(tiny.folder),
        "tokenized_requests": request.param == "ids",
    }


@pytest.mark.parametrize("concurrent", [1, 4])
def test_loglikelihoods(
    tiny: Tiny, tokenizing: dict[str, Any], concurrent: int, tmp_path: Path
) -> None:
    asked = task(
        "weaving",
        write_lines(tmp_path / "docs.jsonl", QUESTIONS),
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_choice="{{choices}}",
        doc_to_target="answer",
        target_delimiter="",
        metric_list=[{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    )
    args = {
        **tokenizing,
        "model": "tiny",
        "base_url": f"{tiny.serving.url}/v1/completions",
        "num_concurrent": concurrent,
        "batch_size": 3 if concurrent == 1 else 1,
    }
    results = evaluate("local-completions", args, asked)
    samples = sorted(results["samples"]["weaving"], key=lambda sample: sample["doc_id"])
    found = [answer for sample in samples for answer in sample["filtered_resps"]]
    assert [bool(greedy) for _, greedy in found] == [greedy for _, greedy in tiny.expected]
    values = [value for value, _ in tiny.expected]
    assert [value for value, _ in found] == pytest.approx(values, abs=LOGPROB_TOLERANCE)
    assert results["results"]["weaving"]["acc,none"] == accuracy(values)


def accuracy(values: list[float]) -> float:
    right = 0
    for doc in QUESTIONS:
        own, values = values[: len(doc["choices"])], values[len(doc["choices"]) :]
        right += max(range(len(own)), key=own.__getitem__) == doc["answer"]
    return right / len(QUESTIONS)


NEXT = [
    {"prompt": f"{start}, {start + 1}, {start + 2}, {start + 3},", "target": f"{start + 4}"}
    for start in range(1, 7)
]


def counting_task(tmp_path: Path) -> dict[str, Any]:
    return task(
        "counting",
        write_lines(tmp_path / "docs.jsonl", NEXT),
        output_type="generate_until",
        doc_to_text="{{prompt}}",
        doc_to_target="{{target}}",
        generation_kwargs={"until": [",", "\n"], "max_gen_toks": 8, "do_sample": False},
        filter_list=[
            {
                "name": "number",
                "filter": [
                    {"function": "regex", "regex_pattern": r"(\d+)"},
                    {"function": "take_first"},
                ],
            }
        ],
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )


def test_generated_answers(url: str, tmp_path: Path) -> None:
    args = {
        "model": MODEL,
        "base_url": f"{url}/v1/completions",
        "tokenizer_backend": None,
        "tokenized_requests": False,
        "num_concurrent": 3,
    }
    results = evaluate("local-completions", args, counting_task(tmp_path))
    assert results["results"]["counting"]["exact_match,number"] == 1.0
    answers = [sample["resps"][0][0] for sample in results["samples"]["counting"]]
    assert not any("," in answer for answer in answers), "the stop string is cut off"


def test_generated_chat_answers(url: str, tmp_path: Path) -> None:
    args = {"model": MODEL, "base_url": f"{url}/v1/chat/completions", "num_concurrent": 2}
    results = evaluate("local-chat-completions", args, counting_task(tmp_path))
    answers = [sample["resps"][0][0] for sample in results["samples"]["counting"]]
    assert len(answers) == len(NEXT)
    assert not any("," in answer or "\n" in answer for answer in answers)
