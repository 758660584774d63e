"""The reference group: threads of one process, each with a rank.

    results = on_threads(4, lambda group: group.all_reduce(numpy.ones(3)))

What a group promises is here in its plainest form, so `conformance.py` begins with it; tests of
programs use it without MPI.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy

from tiny_mpi.calls import (
    FOLDS,
    Call,
    check_array,
    check_fold,
    check_rank,
    check_rows,
    check_same,
)
from tiny_mpi.waits import State, cycle_text, waits_for
from tinycore.errors import GroupError
from tinycore.groups import Array
from tinycore.plugin import recursive_lock

__all__ = ["Board", "BoardGroup", "ThreadGroup", "on_threads"]

WAIT_SECONDS: Final = 1e-4

Result = TypeVar("Result")


class Board:
    """State of a group that all of its members see, under one condition.

    What members give is passed on as it is, so it may stand for an array.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition(recursive_lock())
        self.states = dict.fromkeys(range(size), State())
        self.trouble = ""
        """Reason why the group is of no use any more, which all who wait are told."""
        self.given: dict[int, dict[int, tuple[Call, Any]]] = {}
        """Calls and arrays of each collective by its number, by rank."""
        self.read: Counter[int] = Counter()
        """Number of members that have taken the arrays of a collective."""
        self.messages: dict[tuple[int, int], deque[Any]] = {}
        """Arrays on their way, by sender and receiver."""

    def meet(self, rank: int, call: Call, x: Any) -> list[Any]:
        """The arrays that all give to a collective. Raises GroupError for different calls."""
        with self.changed:
            given = self.given.setdefault(call.number, {})
            given[rank] = call, x
            if len(given) == self.size:
                self.states.update(dict.fromkeys(given, State()))
            self.wait(rank, call, lambda: len(given) == self.size)
            self.read[call.number] += 1
            if self.read[call.number] == self.size:
                del self.given[call.number], self.read[call.number]
        check_same([given[other][0] for other in range(self.size)])
        return [given[other][1] for other in range(self.size)]

    def post(self, rank: int, to: int, x: Any) -> None:
        """Leave an array for another rank."""
        with self.changed:
            self.messages.setdefault((rank, to), deque()).append(x)
            if (call := self.states[to].call) and call.peer == rank:
                self.states[to] = State()
            self.changed.notify_all()

    def take(self, rank: int, call: Call) -> Any:
        """The next array for a rank that another has left."""
        source = rank if call.peer is None else call.peer
        with self.changed:
            waiting = self.messages.setdefault((source, rank), deque())
            self.wait(rank, call, lambda: bool(waiting))
            return waiting.popleft()

    def wait(self, rank: int, call: Call, is_done: Callable[[], bool]) -> None:
        """Wait for others, with the condition held. Raises GroupError where that has no end."""
        self.changed.notify_all()
        while not is_done():
            self.states[rank] = State(call)
            self.changed.notify_all()
            if not self.trouble:
                self.trouble = cycle_text(rank, self.states) or self.ended(rank, call)
                self.changed.notify_all()
            if self.trouble:
                raise GroupError(self.trouble)
            self.changed.wait()

    def ended(self, rank: int, call: Call) -> str:
        """The end of a rank that is waited for, in words; "" if there is none."""
        for other in waits_for(call, self.states):
            if self.states[other].ended:
                return f"rank {rank} waits in {call}, and rank {other} has ended its program"
        return ""

    def end(self, rank: int) -> None:
        """Tell the others that nothing comes from a rank any more."""
        with self.changed:
            self.states[rank] = State(ended=True)
            self.changed.notify_all()


class BoardGroup:
    """A member of a group whose members meet at a board."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.calls: Counter[tuple[str, int | None]] = Counter()

    def ask(self, question: str, *given: Any) -> Any:
        """The answer of a method of the board to this rank."""
        raise NotImplementedError

    def lent(self, x: Array) -> Any:
        """Stand-in for a copy of an array, which the board passes on."""
        raise NotImplementedError

    def fetched(self, lent: Any) -> Array:
        """The array that a stand-in is for."""
        raise NotImplementedError

    def all_reduce(self, x: Array, fold: str = "sum") -> Array:
        """The fold of the arrays of all, in the order of ranks."""
        check_fold(fold, x)
        return folded(self.arrays("all_reduce", x, fold), fold, x.dtype)

    def all_gather(self, x: Array) -> Array:
        """(...) -> (size, ...): the arrays of all, in the order of ranks."""
        return numpy.stack(self.arrays("all_gather", check_array(x)))

    def reduce_scatter(self, x: Array, fold: str = "sum") -> Array:
        """(size, ...) -> (...): the row of this rank of what `all_reduce` gives."""
        check_fold(fold, x)
        check_rows("reduce_scatter", x, self.size)
        rows = [array[self.rank] for array in self.arrays("reduce_scatter", x, fold)]
        return folded(rows, fold, x.dtype)

    def broadcast(self, x: Array, root: int = 0) -> Array:
        """The array of one rank; those of the others say its shape and dtype."""
        check_rank("broadcast", root, self.size)
        lent = self.ask(
            "meet", self.call("broadcast", check_array(x), f"root {root}"), self.lent(x)
        )
        return self.fetched(lent[root]).copy()

    def all_to_all(self, x: Array) -> Array:
        """(size, ...) -> (size, ...): row j goes to rank j, row i of the result is from rank i."""
        check_rows("all_to_all", x, self.size)
        return numpy.stack([array[self.rank] for array in self.arrays("all_to_all", x)])

    def barrier(self) -> None:
        """Wait until all members are here."""
        self.begin("barrier", None)

    def begin(self, name: str, x: Array | None, detail: str = "") -> Call:
        """The next collective, in which all agree. Raises GroupError, naming two calls, if not."""
        call = self.call(name, x, detail)
        self.ask("meet", call, None)
        return call

    def wait(self, is_done: Callable[[], bool], call: Call) -> None:
        """Wait for what a call asks for."""
        while not is_done():
            time.sleep(WAIT_SECONDS)

    def arrays(self, name: str, x: Array, detail: str = "") -> list[Array]:
        """The arrays that all give to a collective."""
        lent = self.ask("meet", self.call(name, x, detail), self.lent(x))
        return [self.fetched(one) for one in lent]

    def call(self, name: str, x: Array | None, detail: str) -> Call:
        """The next collective."""
        return Call.of(name, self.number("collective", None), x, detail)

    def send(self, x: Array, to: int) -> None:
        """Send an array; returns before it is received."""
        check_rank("send", to, self.size)
        self.ask("post", to, self.lent(check_array(x)))

    def recv(self, source: int) -> Array:
        """The next array that a rank sends to this one, in its shape and dtype."""
        check_rank("recv", source, self.size)
        call = Call("recv", self.number("recv", source), peer=source)
        return self.fetched(self.ask("take", call)).copy()

    def number(self, name: str, peer: int | None) -> int:
        """Number of calls of a kind before this one."""
        self.calls[name, peer] += 1
        return self.calls[name, peer] - 1


class ThreadGroup(BoardGroup):
    """A thread in a group of threads."""

    def __init__(self, rank: int, board: Board) -> None:
        super().__init__(rank, board.size)
        self.board = board

    def ask(self, question: str, *given: Any) -> Any:
        """Call the board."""
        return getattr(self.board, question)(self.rank, *given)

    def lent(self, x: Array) -> Array:
        """A copy."""
        return x.copy()

    def fetched(self, lent: Array) -> Array:
        """The array itself."""
        return lent


def folded(arrays: list[Array], fold: str, dtype: numpy.dtype[Any]) -> Array:
    """The fold of arrays, that of float16 in float32."""
    wide = numpy.float32 if dtype == numpy.float16 else dtype.newbyteorder("=")
    result = arrays[0].astype(wide)
    for array in arrays[1:]:
        result = numpy.asarray(FOLDS[fold](result, array, dtype=wide))
    return result.astype(dtype)


def on_threads(size: int, function: Callable[[ThreadGroup], Result]) -> list[Result]:
    """The results of a function in each of `size` threads that are a group, in order of ranks.

    Raises what the first of them raised, by rank, with the errors of the others as notes.
    """
    board = Board(size)
    results: dict[int, Result] = {}
    errors: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        group = ThreadGroup(rank, board)
        try:
            results[rank] = function(group)
        except BaseException as error:
            errors[rank] = error
        finally:
            board.end(rank)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        first, *others = sorted(errors)
        for rank in others:
            errors[first].add_note(f"rank {rank}: {type(errors[rank]).__name__}: {errors[rank]}")
        raise errors[first]
    return [results[rank] for rank in range(size)]
