"""Layered layout of a directed acyclic graph, in the way of Sugiyama, Tagawa and Toda (1981).

Nodes come in a topological order and edges go down. An edge over several layers has a bend in each,
which takes part in the order and the room of the layer; in large graphs it is one straight line.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isqrt
from typing import Final

__all__ = ["HEIGHT", "layered", "width_of"]

SWEEPS: Final = 4
"""Times that each layer is moved towards the one above, and towards the one below."""
GAP: Final = 18
HEIGHT: Final = 26
"""Height of a node."""
PITCH: Final = 56
"""From the middle of one layer to that of the next."""
LONGEST_LABEL: Final = 40
LEAST_ROW: Final = 40
"""Nodes that a layer may have in one row, however small the graph is."""
LONGEST_COLUMN: Final = 150
"""Rows of a column where there are more than twice as many: it goes on beside the first."""
MOST_BENDS: Final = 10_000
"""Bends of all edges together; where there would be more, edges have none."""
BEND: Final = 0.0
"""The width of a bend."""

Point = tuple[float, float]
Edges = Sequence[tuple[int, int]]
Neighbors = list[list[int]]


def width_of(label: str) -> float:
    """The width of a node, for letters of twelve pixels."""
    return 7.2 * min(len(label), LONGEST_LABEL) + 20


def layered(widths: Sequence[float], edges: Edges) -> tuple[list[Point], list[list[Point]]]:
    """The middle of each node, and the bends of each edge. An edge (a, b) has a < b."""
    depth = depths(len(widths), edges)
    bends = bends_of(edges, depth)
    above: Neighbors = [[] for _ in depth]
    below: Neighbors = [[] for _ in depth]
    for (a, b), bent in zip(edges, bends, strict=True):
        way = [a, *bent, b]
        for upper, lower in pairwise(way):
            above[lower].append(upper)
            below[upper].append(lower)
    room = [*widths, *[BEND] * (len(depth) - len(widths))]
    rows = rows_of(depth, 4 * isqrt(len(depth)) + LEAST_ROW)
    x = [0.0] * len(depth)
    for row in rows:
        spread(row, x, room)
    for _ in range(SWEEPS):
        for rows_in_order, neighbors in ((rows, above), (rows[::-1], below)):
            for row in rows_in_order:
                move_towards(row, neighbors, x, room)
    column = max(x, default=0.0) - min(x, default=0.0) + 2 * max(widths, default=0.0)
    longest = len(rows) if len(rows) <= 2 * LONGEST_COLUMN else LONGEST_COLUMN
    places = [(0.0, 0.0)] * len(depth)
    for number, row in enumerate(rows):
        across, down = divmod(number, longest)
        for node in row:
            places[node] = round(x[node] + across * column, 1), float(down * PITCH)
    return places[: len(widths)], [[places[node] for node in bent] for bent in bends]


def depths(count: int, edges: Edges) -> list[int]:
    """The layer of each node: right above its first user; without one, below all its sources."""
    sources: Neighbors = [[] for _ in range(count)]
    users: Neighbors = [[] for _ in range(count)]
    for a, b in edges:
        sources[b].append(a)
        users[a].append(b)
    depth = [0] * count
    for node, above in enumerate(sources):
        depth[node] = max((depth[source] + 1 for source in above), default=0)
    for node, below in reversed([*enumerate(users)]):
        depth[node] = min((depth[user] - 1 for user in below), default=depth[node])
    return depth


def bends_of(edges: Edges, depth: list[int]) -> list[list[int]]:
    """The bends of each edge, as numbers of nodes, whose layers are added to `depth`."""
    if sum(depth[b] - depth[a] - 1 for a, b in edges) > MOST_BENDS:
        return [[] for _ in edges]
    found = []
    for a, b in edges:
        between = range(depth[a] + 1, depth[b])
        found.append(list(range(len(depth), len(depth) + len(between))))
        depth.extend(between)
    return found


def rows_of(depth: Sequence[int], most: int) -> list[list[int]]:
    """The nodes of each layer, those of a layer with more than so many in rows of as many."""
    layers: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for node, number in enumerate(depth):
        layers[number].append(node)
    return [layer[start : start + most] for layer in layers for start in range(0, len(layer), most)]


def move_towards(
    row: list[int], neighbors: Neighbors, x: list[float], widths: Sequence[float]
) -> None:
    """Sort a row by the mean of each node's neighbors, and bring it as near to it as there is room.

    The order of nodes without neighbors is kept.
    """
    for node in row:
        if near := neighbors[node]:
            x[node] = sum(x[other] for other in near) / len(near)
    row.sort(key=x.__getitem__)
    spread(row, x, widths)


def spread(row: list[int], x: list[float], widths: Sequence[float]) -> None:
    """Part the nodes of a row that overlap, by as much to the left as to the right."""
    if len(row) < 2:
        return
    right, left = [x[node] for node in row], [x[node] for node in row]
    apart = [(widths[a] + widths[b]) / 2 + GAP for a, b in pairwise(row)]
    for place, distance in enumerate(apart):
        right[place + 1] = max(right[place + 1], right[place] + distance)
    for place in range(len(apart) - 1, -1, -1):
        left[place] = min(left[place], left[place + 1] - apart[place])
    for node, a, b in zip(row, left, right, strict=True):
        x[node] = (a + b) / 2
