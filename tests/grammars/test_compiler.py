"""Compilations beside the loop, by a backend whose compilations the test lets go."""

from __future__ import annotations

import threading
import time

import pytest

from treadle.errors import InvalidRequest, OverloadError
from treadle.grammars.compiler import Compiling, GrammarCompiler
from treadle.grammars.limits import CompilerLimits
from treadle.grammars.ports import Grammar, Matcher
from treadle.wire.constraint import Constraint


class Compiled:
    num_bytes = 1000

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint

    def matcher(self) -> Matcher:
        raise NotImplementedError


class Backend:
    """Compiles when let; refuses texts that begin with "bad", breaks at those with "broken"."""

    name = "test"

    def __init__(self) -> None:
        self.go = threading.Event()
        self.compiled: list[str] = []

    def compile(self, constraint: Constraint) -> Grammar:
        assert self.go.wait(20)
        self.compiled.append(constraint.text)
        if constraint.text.startswith("bad"):
            raise InvalidRequest("bad regex", param="regex")
        if constraint.text.startswith("broken"):
            raise KeyError("inside")
        return Compiled(constraint)


class Bench:
    """A compiler over it, with a clock set by hand."""

    def __init__(self, limits: CompilerLimits | None = None) -> None:
        self.backend = Backend()
        self.num_made = 0
        self.woken = threading.Semaphore(0)
        self.now_s = 0.0
        self.compiler = GrammarCompiler(
            self.make, limits, wake=self.woken.release, clock=lambda: self.now_s
        )

    def make(self) -> Backend:
        self.num_made += 1
        return self.backend

    def start(self, text: str) -> Compiling:
        return self.compiler.start(Constraint.regex(text))

    def end(self, count: int = 1) -> None:
        self.backend.go.set()
        for _ in range(count):
            assert self.woken.acquire(timeout=20)

    def wait(self, compiling: Compiling) -> None:
        """Compilations may end before one asks, so that `woken` counts some that are over."""
        self.backend.go.set()
        while compiling.poll() is None:
            assert self.woken.acquire(timeout=20)


def text_of(compiling: Compiling) -> str:
    grammar = compiling.poll()
    assert isinstance(grammar, Compiled)
    return grammar.constraint.text


def test_equal_constraints_are_compiled_once() -> None:
    bench = Bench()
    assert bench.num_made == 0, "nothing is made before it is wanted"
    first, second, other = bench.start("a"), bench.start("a"), bench.start("b")
    assert first.poll() is second.poll() is None
    assert bench.compiler.num_compiling == 2
    bench.end(2)
    assert (text_of(first), text_of(second), text_of(other)) == ("a", "a", "b")
    assert text_of(bench.start("a")) == "a", "known at the first poll"
    assert sorted(bench.backend.compiled) == ["a", "b"]
    assert bench.num_made == 1
    assert bench.compiler.num_compiling == 0


def test_a_refusal_is_remembered() -> None:
    bench = Bench()
    first = bench.start("bad")
    bench.end()
    for compiling in (first, bench.start("bad")):
        with pytest.raises(InvalidRequest, match="bad regex") as caught:
            compiling.poll()
        assert caught.value.param == "regex"
    assert bench.backend.compiled == ["bad"]


def test_a_library_that_breaks_fails_the_request_alone() -> None:
    bench = Bench()
    compiling = bench.start("broken")
    bench.end()
    with pytest.raises(InvalidRequest, match="the grammar library failed on this constraint"):
        compiling.poll()
    after = bench.start("fine")
    bench.wait(after)
    assert text_of(after) == "fine"


def test_what_nobody_waits_for_is_not_compiled() -> None:
    bench = Bench(CompilerLimits(num_threads=1))
    running, dropped, kept = bench.start("a"), bench.start("b"), bench.start("c")
    shared = bench.start("c")
    dropped.drop()
    kept.drop()
    bench.end(3)  # a cancelled compilation has ended too
    assert (text_of(running), text_of(shared)) == ("a", "c")
    assert bench.backend.compiled == ["a", "c"]
    again = bench.start("b")
    bench.wait(again)
    assert text_of(again) == "b"


def test_what_takes_too_long_is_refused_at_once_and_from_then_on() -> None:
    bench = Bench(CompilerLimits(num_threads=1, max_compile_s=5))
    slow, queued = bench.start("slow"), bench.start("queued")
    while slow._job.began_s is None:
        time.sleep(0.001)
    bench.now_s = 5.5
    with pytest.raises(InvalidRequest, match="takes longer than 5 seconds"):
        slow.poll()
    assert queued.poll() is None, "what waits for a thread is not slow"
    with pytest.raises(InvalidRequest, match="longer"):
        bench.start("slow").poll()
    bench.end(2)
    assert text_of(queued) == "queued"


def test_the_queue_is_bounded() -> None:
    bench = Bench(CompilerLimits(num_threads=1, max_waiting=2))
    waiting = [bench.start("a"), bench.start("b")]
    with pytest.raises(OverloadError, match="2 grammars"):
        bench.start("c")
    bench.start("a").drop()
    bench.end(2)
    assert [text_of(one) for one in waiting] == ["a", "b"]


@pytest.mark.parametrize("limits", [{"max_cached": 2}, {"max_cached_bytes": 2500}])
def test_the_cache_forgets_what_was_wanted_least_recently(limits: dict[str, int]) -> None:
    bench = Bench(CompilerLimits(**limits))  # type: ignore[arg-type]
    for text in ("a", "b", "a", "c", "d"):
        compiling = bench.start(text)
        bench.wait(compiling)
        assert text_of(compiling) == text
        compiling.drop()
    bench.start("d").drop()
    assert bench.backend.compiled == ["a", "b", "c", "d"]
    for text in ("c", "a", "b"):
        compiling = bench.start(text)
        bench.wait(compiling)
        compiling.drop()
    assert bench.backend.compiled == ["a", "b", "c", "d", "a", "b"]


def test_what_is_waited_for_stays() -> None:
    bench = Bench(CompilerLimits(max_cached=1))
    held = bench.start("a")
    bench.end()
    for text in ("b", "c"):
        other = bench.start(text)
        bench.wait(other)
        assert text_of(other) == text
        other.drop()
    assert text_of(held) == "a"
    bench.start("a")
    assert bench.backend.compiled == ["a", "b", "c"]


def test_warming_makes_the_backend_once_and_no_constraint_waits_for_it() -> None:
    bench = Bench()
    bench.compiler.warm()
    deadline = time.monotonic() + 20
    while not bench.num_made and time.monotonic() < deadline:
        time.sleep(0.001)
    assert bench.num_made == 1, "made though no constraint came"
    assert bench.compiler.num_compiling == 0, "warming takes no constraint's place"

    bench = Bench()
    bench.compiler.warm()
    compiling = bench.start("a+")
    bench.end()
    assert compiling.poll() is not None
    assert bench.num_made == 1, "the constraint made another"


def test_a_backend_that_warming_could_not_make_is_the_first_constraints_refusal() -> None:
    tries = []

    def make() -> Backend:
        tries.append(1)
        raise InvalidRequest("no end token")

    woken = threading.Semaphore(0)
    compiler = GrammarCompiler(make, wake=woken.release)
    compiler.warm()
    compiling = compiler.start(Constraint.regex("a+"))
    assert woken.acquire(timeout=20)
    with pytest.raises(InvalidRequest, match="no end token"):
        compiling.poll()
    compiling.drop()
    compiler.close()
    assert len(tries) == 2, "tried by warming, and again"
