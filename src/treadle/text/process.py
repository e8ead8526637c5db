"""What runs in a process that makes texts: the engine's Deltas in, parts of answers out.

Knows no HTTP and no prompt, and decides nothing about requests: whoever asked is told that a stop
string was found, and aborts.
"""

from __future__ import annotations

import gc
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from treadle.errors import StartError
from treadle.text.choice import Choice
from treadle.text.load import load_text
from treadle.text.output import AnswerText
from treadle.text.tokenizer import Tokenizer
from treadle.text.workers import FromWorker, Told
from treadle.wire.channel import Link, close_slowly, wait
from treadle.wire.child import EXIT_NOT_STARTED, EXIT_ORPHANED, become_child, read_line
from treadle.wire.ends import WorkerStart
from treadle.wire.messages import Delta, Failed, Generate, Progress, Stats
from treadle.wire.routes import ForWorker


class TextService:
    """A request is known from its Generate until its answer ends, here or in the engine."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._choices: dict[str, Choice] = {}

    def take(self, messages: Sequence[ForWorker]) -> list[FromWorker]:
        told: list[FromWorker] = []
        for message in messages:
            match message:
                case Generate():
                    text = AnswerText(self._tokenizer, message.params)
                    self._choices[message.request_id] = Choice(0, text)
                case Delta():
                    told += self._parts(message)
                case Failed():
                    if self._choices.pop(message.request_id, None) is not None:
                        told.append(message)
                case Stats():
                    told.append(message)
        return told

    def _parts(self, delta: Delta) -> list[Told]:
        """None for one that a stop string has ended."""
        choice = self._choices.get(delta.request_id)
        if choice is None:
            return []
        part = choice.part(delta)
        if part.finish_reason is not None:
            del self._choices[delta.request_id]
        early = part.finish_reason is not None and delta.finish is None
        return [Told(delta.request_id, part, early)]


def serve(start: WorkerStart) -> int:
    """Load, then serve until the engine is gone; the exit status."""
    engine, text = (Link(socket.socket(fileno=number)) for number in (start.engine, start.text))
    began = time.monotonic()
    try:
        tokenizer = load_text(Path(start.path)).tokenizer
    except StartError as error:
        text.send([Failed(request_id="", status=error.status, message=error.message)])
        close_slowly([text])
        return EXIT_NOT_STARTED
    gc.freeze()  # what was made so far stays: no collection need look through it again
    text.send([Progress("load detokenizer", time.monotonic() - began)])
    follow(engine, text, TextService(tokenizer))
    close_slowly([text])
    return 0


def follow(engine: Link, text: Link, service: TextService) -> None:
    """Until the engine is gone and all that it said is told."""
    decoder = msgspec.msgpack.Decoder(list[ForWorker])
    while engine.is_open:
        wait([engine, text], engine)
        text.flush()
        for frame in engine.frames():
            told = service.take(decoder.decode(frame))
            if told:
                text.send(told)


def run() -> int:
    """The process's life."""
    become_child()
    line = read_line()
    if not line:
        return EXIT_ORPHANED
    return serve(msgspec.json.decode(line, type=WorkerStart))


if __name__ == "__main__":
    sys.exit(run())
