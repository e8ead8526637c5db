"""One scoring of a prompt for all its answers: who is told what, and when."""

from __future__ import annotations

from treadle.text.choice import ChoiceDelta
from treadle.text.intake import Accepted
from treadle.text.shared_scores import SharedScores, shared_scores
from treadle.wire.messages import TokenLogprob
from treadle.wire.sampling_params import SamplingParams

SCORES = [TokenLogprob(token, -1.0, 1, []) for token in range(3)]


def part(
    index: int,
    token_ids: list[int] | None = None,
    *,
    scores: list[TokenLogprob] | None = None,
    end: bool = False,
) -> ChoiceDelta:
    return ChoiceDelta(
        index=index,
        text="",
        token_ids=token_ids or [],
        logprobs=[],
        cached_tokens=0,
        finish_reason="length" if end else None,
        prompt_logprobs=scores or [],
    )


def told(parts: list[ChoiceDelta]) -> list[tuple[int, list[int], list[TokenLogprob]]]:
    return [(each.index, each.token_ids, each.prompt_logprobs) for each in parts]


def test_other_answers_wait_for_the_scores_and_begin_with_them() -> None:
    shared = SharedScores(4)
    assert told(shared.pass_on(part(4, scores=SCORES[:2]))) == [(4, [], SCORES[:2])]
    assert shared.pass_on(part(5, [70])) == []
    assert shared.pass_on(part(5, [71])) == []
    assert told(shared.pass_on(part(4, scores=SCORES[2:]))) == [(4, [], SCORES[2:])]
    assert told(shared.pass_on(part(4, [60]))) == [(4, [60], []), (5, [70, 71], SCORES)]
    assert told(shared.pass_on(part(5, [72]))) == [(5, [72], [])]
    assert told(shared.pass_on(part(6, [80]))) == [(6, [80], SCORES)]
    assert told(shared.pass_on(part(6, [81], end=True))) == [(6, [81], [])]
    assert told(shared.pass_on(part(4, [61]))) == [(4, [61], [])]


def test_nobody_waits_for_an_answer_that_has_ended() -> None:
    shared = SharedScores(0)
    shared.pass_on(part(0, scores=SCORES[:1]))
    assert shared.pass_on(part(1, [5], end=True)) == []
    released = shared.pass_on(part(0, end=True))
    assert told(released) == [(0, [], []), (1, [5], SCORES[:1])]
    assert released[1].finish_reason == "length"


def test_which_answers_share() -> None:
    scored = SamplingParams(n=2, prompt_logprobs=0)
    requests = [
        Accepted([1], SamplingParams(n=3)),
        Accepted([1], scored),
        Accepted([1], SamplingParams(prompt_logprobs=0)),
        Accepted([1], scored),
    ]
    shared = shared_scores(requests)
    assert sorted(shared) == [3, 4, 6, 7]
    assert shared[3] is shared[4]
    assert shared[6] is shared[7]
    assert shared[3] is not shared[6]
