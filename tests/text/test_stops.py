"""Stop strings against a search through the whole text."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from treadle.text.stops import StopStrings

letters = st.text("ab", max_size=12)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


def naive_hit(text: str, stops: list[str], armed: list[bool]) -> tuple[int, str] | None:
    """End and text of the stop that counts."""
    ends = [
        (end, -len(stop), stop)
        for stop in stops
        for end in range(len(stop), len(text) + 1)
        if text[end - len(stop) : end] == stop and armed[end - 1]
    ]
    if not ends:
        return None
    end, _, stop = min(ends)
    return end, stop


def longest_start(text: str, stops: list[str]) -> int:
    """Length of the longest end of `text` that begins a stop without being all of it."""
    lengths = [n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


@given(
    chunks=st.lists(st.tuples(letters, st.booleans()), max_size=8),
    stops=stop_lists,
    include=st.booleans(),
)
def test_against_a_search_through_the_whole(
    chunks: list[tuple[str, bool]], stops: list[str], include: bool
) -> None:
    whole = "".join(text for text, _ in chunks)
    armed = [flag for text, flag in chunks for _ in text]
    expected = naive_hit(whole, stops, armed)
    filter_ = StopStrings(stops, include=include)
    seen, fed, hit = "", "", None
    for text, flag in chunks:
        show, hit = filter_.feed(text, armed=flag)
        seen, fed = seen + show, fed + text
        if hit is not None:
            break
        held = 0 if include else longest_start(fed, stops)
        assert seen == fed[: len(fed) - held]
    if expected is None:
        assert hit is None
        assert seen + filter_.finish() == whole
    else:
        end, stop = expected
        assert hit == stop
        assert seen == whole[: end if include else end - len(stop)]
        assert filter_.finish() == ""


def test_examples() -> None:
    stops = StopStrings(["\n\nUser:", "END"], include=False)
    assert stops.feed("Hello\n") == ("Hello", None)
    assert stops.feed("\n") == ("", None)
    assert stops.feed("\nUs") == ("\n", None)
    assert stops.feed("er: hi") == ("", "\n\nUser:")

    # The one that is complete first, though the other begins earlier.
    assert StopStrings(["abcd", "bc"], include=False).feed("xabcd") == ("xa", "bc")
    # Complete at once: the longest.
    assert StopStrings(["c", "abc", "bc"], include=False).feed("xabcd") == ("x", "abc")
    assert StopStrings(["bc"], include=True).feed("abcd") == ("abc", "bc")


def test_nothing_is_held_without_stops() -> None:
    stops = StopStrings([], include=False)
    assert stops.feed("any text") == ("any text", None)
    assert stops.finish() == ""


def test_long_stops_cost_linear_time() -> None:
    start = time.perf_counter()
    stops = StopStrings(["a" * 100_000 + "b"], include=False)
    shown = "".join(stops.feed("a" * 50)[0] for _ in range(4_000))
    assert len(shown) == 100_000
    assert time.perf_counter() - start < 5
