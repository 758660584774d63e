"""Waits of the processes of a group for each other, and the cycles in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tiny_mpi.calls import Call

__all__ = ["TRANSFER", "State", "cycle", "cycle_text", "waits_for"]

TRANSFER: Final = "transfer"
"""The name of a wait for elements that are on their way: it ends whatever other processes do."""


@dataclass(frozen=True)
class State:
    """State of a process, as it last told the others."""

    call: Call | None = None
    """The call that it waits in; None if it computes."""
    ended: bool = False


def waits_for(call: Call, states: Mapping[int, State]) -> list[int]:
    """Ranks that have to act before a call can return."""
    if call.peer is not None:
        return [call.peer]
    return [rank for rank, state in states.items() if not has_come(state.call, call.number)]


def has_come(call: Call | None, number: int) -> bool:
    """True if a process waits in the collective of a number, whichever it is."""
    return call is not None and call.peer is None and call.number == number


def cycle(rank: int, states: Mapping[int, State]) -> list[int]:
    """Ranks that wait in turn, each for the next and the last for `rank`; [] if there are none."""

    def search(path: list[int]) -> list[int]:
        call = states[path[-1]].call
        for after in [] if call is None or call.name == TRANSFER else waits_for(call, states):
            if after == rank:
                return path
            if after not in path and (found := search([*path, after])):
                return found
        return []

    return search([rank])


def cycle_text(rank: int, states: Mapping[int, State]) -> str:
    """The waits of a cycle in words; "" if there is none."""
    waits = [f"rank {number} in {states[number].call}" for number in sorted(cycle(rank, states))]
    return f"processes wait for each other: {', '.join(waits)}" if waits else ""
