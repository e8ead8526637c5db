"""Stop strings in text that arrives in pieces. Knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Text goes through until one of the stops is complete in it.

    What is held back is the longest end of the text that begins a stop: not more, so that readers
    wait for nothing, and not less, so that no part of a stop is ever shown. With `include` the stop
    is shown anyway, and nothing is held back.
    """

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        self._matches = [_Match(stop) for stop in stops]
        self._include = include
        self._held = ""

    def feed(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """The text to show, and the stop that ended it.

        The stop that is complete first wins, of several the longest. One that is complete while not
        `armed` is text like any other.
        """
        for end, char in enumerate(text, 1):
            complete = [match.stop for match in self._matches if match.push(char)]
            if complete and armed:
                return self._cut(text[:end], max(complete, key=len))
        whole = self._held + text
        show = len(whole) - self._num_held()
        self._held = whole[show:]
        return whole[:show], None

    def finish(self) -> str:
        """The text held back, once no more can come."""
        held, self._held = self._held, ""
        return held

    def _cut(self, text: str, stop: str) -> tuple[str, str]:
        whole = self._held + text
        self._held = ""
        return whole if self._include else whole.removesuffix(stop), stop

    def _num_held(self) -> int:
        if self._include:
            return 0
        return max((match.length for match in self._matches), default=0)


class _Match:
    """How much of one stop the end of the text spells: always the most, and never all of it.

    Each character costs constant time on average (Knuth, Morris and Pratt), however long the stop.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.length = 0
        self._borders = _borders(stop)

    def push(self, char: str) -> bool:
        """Whether this character completes the stop."""
        self.length = _extend(self.stop, self._borders, self.length, char)
        if self.length < len(self.stop):
            return False
        self.length = self._borders[-1]
        return True


def _extend(stop: str, borders: list[int], length: int, char: str) -> int:
    """Length of the longest start of `stop` that ends in `char` and continues one of `length`."""
    while length and stop[length] != char:
        length = borders[length - 1]
    return length + 1 if stop[length] == char else 0


def _borders(stop: str) -> list[int]:
    """For each start of `stop`: the longest shorter start that it also ends with."""
    borders = [0]
    for char in stop[1:]:
        borders.append(_extend(stop, borders, borders[-1], char))
    return borders
