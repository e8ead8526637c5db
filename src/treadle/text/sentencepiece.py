"""Encoding with SentencePiece vocabularies: BPE over characters, by the pieces' own order.

Written here and not left to the tokenizers library, because the library wants the merges, which
SentencePiece files do not list: deriving and loading those of 262,144 tokens takes seconds, looking
pieces up takes none. Never decodes.
"""

from __future__ import annotations

import dataclasses
import heapq
import re
from collections.abc import Iterator, Mapping, Sequence

_SPACE = "▁"
_MAX_CACHED_WORDS = 1 << 16
_MAX_CACHED_CHARS = 48


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The tokens that text is cut into, by SentencePiece's name for them. A piece that has an id
    has a key."""

    ids: Mapping[str, int]
    """Ordinary pieces; a space is spelled ▁."""
    keys: Mapping[str, float]
    """The pieces again: of two pairs that can be merged, the one with the lower key is first."""
    byte_ids: Mapping[int, int]
    """Token of a byte, for characters that are no piece. Files out of converted vocabularies lack
    the tab's, which is a piece there."""
    unknown_id: int | None
    """Stands for a run of characters that can be spelled in no other way."""


class SentencePieceEncoder:
    """Any thread may use it: what it remembers of earlier words changes no result."""

    def __init__(
        self,
        pieces: Pieces,
        *,
        control: Mapping[str, int],
        user_defined: Mapping[str, int],
        prefix_space: bool,
    ) -> None:
        self._pieces = pieces
        self._special = _Literals({**control, **user_defined})
        self._plain = _Literals(user_defined)
        self._prefix = _SPACE if prefix_space else ""
        self._words = _word_pattern(pieces.ids)
        self._cache: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """The space in front is put before each stretch of text, as llama.cpp and the published
        tokenizers of Llama 2 have it."""
        literals = self._special if parse_special else self._plain
        ids: list[int] = []
        for stretch, token in literals.cut(text):
            if stretch:
                spelled = self._prefix + stretch.replace(" ", _SPACE)
                for word in self._words.findall(spelled):
                    ids += self._word(word)
            if token is not None:
                ids.append(token)
        return ids

    def _word(self, word: str) -> tuple[int, ...]:
        known = self._cache.get(word)
        if known is None:
            known = tuple(self._spell(_merge(word, self._pieces.keys)))
            if len(word) <= _MAX_CACHED_CHARS:
                if len(self._cache) >= _MAX_CACHED_WORDS:
                    self._cache.clear()
                self._cache[word] = known
        return known

    def _spell(self, parts: Sequence[str]) -> Iterator[int]:
        unknown = False
        for part in parts:
            token = self._pieces.ids.get(part)
            spelled = self._spell_bytes(part) if token is None else [token]
            if spelled:
                yield from spelled
            elif self._pieces.unknown_id is not None and not unknown:
                yield self._pieces.unknown_id
            unknown = not spelled

    def _spell_bytes(self, part: str) -> list[int]:
        """Empty unless all of its bytes have tokens."""
        ids = [self._pieces.byte_ids.get(byte) for byte in part.encode()]
        found = [token for token in ids if token is not None]
        return found if len(found) == len(ids) else []


class _Literals:
    """Texts that are tokens wherever they stand; of several at one place, the longest."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        lengths: dict[str, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        first = "".join(map(re.escape, lengths))
        self._starts = re.compile(f"[{first}]") if first else None

    def cut(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Stretches of other text, each with the token behind it; the last has none."""
        start = at = 0
        while self._starts is not None and (found := self._starts.search(text, at)):
            at = found.start()
            for length in self._lengths[text[at]]:
                token = self._ids.get(text[at : at + length])
                if token is not None:
                    yield text[start:at], token
                    start = at = at + length
                    break
            else:
                at += 1
        yield text[start:], None


def _word_pattern(pieces: Mapping[str, int]) -> re.Pattern[str]:
    """Cuts text where no piece can reach across: before a space, because pieces hold spaces at
    their start. Characters behind which some piece does hold a space end no word."""
    inside = re.findall(f"[^{_SPACE}\0](?={_SPACE})", "\0".join(pieces))
    glue = "".join(map(re.escape, sorted(set(inside))))
    across = f"(?:(?<=[{glue}]){_SPACE}+[^{_SPACE}]*)*" if glue else ""
    return re.compile(f"{_SPACE}*[^{_SPACE}]+{across}|{_SPACE}+")


def _merge(word: str, keys: Mapping[str, float]) -> list[str]:
    """The parts of a word when no two neighbours make a piece any more.

    Always merges the pair with the lowest key, of equal ones the leftmost. Parts are known by where
    they start: `ends` has their ends, `starts` the start of the part that ends at a place.
    """
    size = len(word)
    ends = list(range(1, size + 1))
    starts = list(range(-1, size))
    heap = [
        (key, at, at + 1, at + 2)
        for at in range(size - 1)
        if (key := keys.get(word[at : at + 2])) is not None
    ]
    heapq.heapify(heap)
    while heap:
        _, left, middle, right = heapq.heappop(heap)
        if ends[left] != middle or ends[middle] != right:
            continue  # one of the two has been merged with another part
        ends[left], ends[middle], starts[right] = right, 0, left
        before = starts[left]
        if before >= 0 and (key := keys.get(word[before:right])) is not None:
            heapq.heappush(heap, (key, before, left, right))
        if right < size and (key := keys.get(word[left : ends[right]])) is not None:
            heapq.heappush(heap, (key, left, right, ends[right]))
    parts, at = [], 0
    while at < size:
        parts.append(word[at : ends[at]])
        at = ends[at]
    return parts
