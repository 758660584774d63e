"""The process in which one peer runs one case: `python -m benchmarks.worker PEER CASE`.

It says that it is ready, with a digest of its result; a turn is the samples taken in it: see
`lines`.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from time import perf_counter
from typing import Any, Final

import numpy

from benchmarks.agreement import digest
from benchmarks.case import Case, Kind, Prepared
from benchmarks.cases import find_case
from benchmarks.lines import private_stdout, serve
from benchmarks.peers import PEERS, Array, Peer
from benchmarks.samples import Sample, inner_calls, take

WARM_CALLS: Final = 4
"""Calls before the result is compared: a JIT runs, then captures, then replays."""


class Work:
    """A case, set up in a peer, warm."""

    def __init__(self, case: Case, peer: Peer) -> None:
        generator = numpy.random.default_rng(0)
        inputs = [peer.tensor(made.make(generator), made.dtype) for made in case.inputs]
        self.step = peer.step(case, inputs)
        for _ in range(WARM_CALLS):
            result = self.call()
        self.digest = self.digested(case, peer.array(result))  # a next call may reuse its memory
        self.seconds = take(self.call, 1).seconds

    @staticmethod
    def digested(case: Case, array: Array) -> dict[str, Any]:
        """Facts told of the result."""
        if case.kind is Kind.TOOL:
            return {"count": int(array)}
        return {"digest": asdict(digest(array))}

    def call(self) -> Any:
        """One call, everything included."""
        return (
            self.step.run(self.step.prepare()) if isinstance(self.step, Prepared) else self.step()
        )

    def sample(self) -> Sample:
        """One sample."""
        if not isinstance(self.step, Prepared):
            return take(self.step, inner_calls(self.seconds))
        prepared, run = self.step.prepare(), self.step.run
        return take(lambda: run(prepared), 1)

    def turn(self, seconds: float) -> list[tuple[float, int]]:
        """Samples for about so many seconds, after a call to fetch back what others displaced."""
        if self.seconds < seconds:
            self.call()
        samples: list[Sample] = []
        end = perf_counter() + seconds
        while not samples or perf_counter() < end:
            samples.append(self.sample())
        return [(sample.seconds, sample.switches) for sample in samples]


def main() -> None:
    """Set up, then serve."""
    answers = private_stdout()
    name, case = sys.argv[1], find_case(sys.argv[2])
    assert isinstance(case, Case)
    peer = PEERS[name]()
    work = Work(case, peer)
    serve(answers, {"about": peer.about(), **work.digest}, work.turn)


if __name__ == "__main__":
    main()
