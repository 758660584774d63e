"""The reference group: threads of one process, each with a rank.

    results = on_threads(4, lambda group: group.all_reduce(numpy.ones(3)))

What a group promises is here in its plainest form, so `conformance.py` begins with it; tests of
programs use it without MPI.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, TypeVar

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

__all__ = ["ThreadGroup", "on_threads"]

Result = TypeVar("Result")


class Board:
    """State of a group that all of its threads see, under one condition."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.states = dict.fromkeys(range(size), State())
        self.given: dict[int, dict[int, tuple[Call, Array]]] = {}
        """Calls and arrays of each collective by its number, by rank."""
        self.read: Counter[int] = Counter()
        """Number of threads that have taken the arrays of a collective."""
        self.messages: dict[tuple[int, int], deque[Array]] = {}
        """Arrays on their way, by sender and receiver."""

    def wait(self, rank: int, call: Call, is_done: Callable[[], bool]) -> None:
        """Wait for others, with the condition held. Raises GroupError where that has no end."""
        self.changed.notify_all()
        while not is_done():
            self.states[rank] = State(call)
            self.changed.notify_all()
            for other in waits_for(call, self.states):
                if self.states[other].ended:
                    raise GroupError(
                        f"rank {rank} waits in {call}, and rank {other} has ended its program"
                    )
            if reason := cycle_text(rank, self.states):
                raise GroupError(reason)
            self.changed.wait()


class ThreadGroup:
    """A thread in a group of threads."""

    def __init__(self, rank: int, board: Board) -> None:
        self.rank, self.size, self.board = rank, board.size, board
        self.calls: Counter[tuple[str, int | None]] = Counter()

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
        return self.arrays("broadcast", check_array(x), f"root {root}")[root].copy()

    def all_to_all(self, x: Array) -> Array:
        """(size, ...) -> (size, ...): row j goes to rank j, row i of the result is from rank i."""
        check_rows("all_to_all", x, self.size)
        return numpy.stack([array[self.rank] for array in self.arrays("all_to_all", x)])

    def barrier(self) -> None:
        """Wait until all threads are here."""
        self.arrays("barrier", None)

    def arrays(self, name: str, x: Array | None, detail: str = "") -> list[Array]:
        """The arrays that all give to a collective. Raises GroupError for different calls."""
        number = self.number("collective", None)
        call = Call.of(name, number, x, detail)
        board = self.board
        with board.changed:
            given = board.given.setdefault(number, {})
            given[self.rank] = call, numpy.empty(0) if x is None else x.copy()
            if len(given) == self.size:
                board.states.update(dict.fromkeys(given, State()))
            board.wait(self.rank, call, lambda: len(given) == self.size)
            board.read[number] += 1
            if board.read[number] == self.size:
                del board.given[number], board.read[number]
        check_same([given[rank][0] for rank in range(self.size)])
        return [given[rank][1] for rank in range(self.size)]

    def send(self, x: Array, to: int) -> None:
        """Send an array; returns before it is received."""
        check_rank("send", to, self.size)
        sent = check_array(x).copy()
        with self.board.changed:
            self.board.messages.setdefault((self.rank, to), deque()).append(sent)
            if (call := self.board.states[to].call) and call.peer == self.rank:
                self.board.states[to] = State()
            self.board.changed.notify_all()

    def recv(self, source: int) -> Array:
        """The next array that a rank sends to this one, in its shape and dtype."""
        check_rank("recv", source, self.size)
        call = Call("recv", self.number("recv", source), peer=source)
        with self.board.changed:
            waiting = self.board.messages.setdefault((source, self.rank), deque())
            self.board.wait(self.rank, call, lambda: bool(waiting))
            return waiting.popleft()

    def number(self, name: str, peer: int | None) -> int:
        """Number of calls of a kind before this one."""
        self.calls[name, peer] += 1
        return self.calls[name, peer] - 1

    def end(self) -> None:
        """Tell the others that nothing comes any more."""
        with self.board.changed:
            self.board.states[self.rank] = State(ended=True)
            self.board.changed.notify_all()


def folded(arrays: list[Array], fold: str, dtype: numpy.dtype[Any]) -> Array:
    """The fold of arrays, that of float16 in float32."""
    wide = numpy.float32 if dtype == numpy.float16 else dtype
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
            group.end()

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
