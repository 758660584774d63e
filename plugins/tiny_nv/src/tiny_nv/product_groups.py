"""Groups of asynchronous products (wgmma groups): which are committed together, and the waits.

A wgmma executes asynchronously. Successive products that add to one sum are committed as one group.
The kernel waits for a group before the first use of its sum, and at the latest at a barrier or at
the end of a loop, except that a loop may leave groups in flight while its next step begins: then
its barrier says how many. Both renderers insert the waits where these functions say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from tiny_nv.warpgroup import WARPGROUP
from tinycore.render.base import pointer_of
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = [
    "Wait",
    "product_groups",
    "products_in_flight",
    "sum_registers",
    "waits_before",
]

GROUP_ENDS: Final = frozenset({Op.RANGE, Op.END, Op.BARRIER})
"""Ops that no group of products extends across."""


@lru_cache(maxsize=8)
def product_groups(uops: tuple[UOp, ...]) -> Mapping[UOp, tuple[UOp, ...]]:
    """The groups of products, each in order, by their last product.

    A product is in the group of the next one if that alone uses its sum, before any barrier or end
    of a loop, and before the register that the first of them adds to is written.
    """
    uses = Counter(source for u in uops for source in u.src)
    found: dict[UOp, tuple[UOp, ...]] = {}
    open_groups: set[UOp] = set()
    for u in uops:
        if u.op is Op.MATRIX and u.arg.name in WARPGROUP:
            before = u.src[2]
            if before in open_groups and uses[before] == 1:
                found[u] = (*found.pop(before), u)
                open_groups.discard(before)
            else:
                found[u] = (u,)
            open_groups.add(u)
        elif u.op in GROUP_ENDS:
            open_groups.clear()
        elif u.op is Op.STORE:
            written = pointer_of(u.src[0])
            open_groups -= {
                last for last in open_groups if is_sum_in(found[last][0].src[2], written)
            }
    return found


def is_sum_in(value: UOp, memory: UOp) -> bool:
    """True if a value is loaded from some memory."""
    return value.op is Op.LOAD and pointer_of(value.src[0]) is memory


@lru_cache(maxsize=8)
def sum_registers(uops: tuple[UOp, ...]) -> Mapping[UOp, UOp]:
    """The register in which the sum of a group is stored, by the last product of the group.

    Only if nothing accesses the register between the product and the store, so that the group may
    add to it in place.
    """
    uses = Counter(source for u in uops for source in u.src)
    found: dict[UOp, UOp] = {}
    waiting: set[UOp] = set()
    touched: dict[UOp, set[UOp]] = {}
    for u in uops:
        if u.op is Op.MATRIX and uses[u] == 1:
            waiting.add(u)
            touched[u] = set()
        elif u.op in (Op.LOAD, Op.STORE):
            memory = pointer_of(u.src[0])
            value = u.src[1] if u.op is Op.STORE else u
            if memory.op is Op.DEFINE_REG and value in waiting and memory not in touched[value]:
                found[value] = memory
            waiting.discard(value)
            for product in waiting:
                touched[product].add(memory)
        elif u.op in (Op.RANGE, Op.END):
            waiting.clear()
    return found


class InFlight(NamedTuple):
    """Groups that loops leave in flight while their next step begins."""

    products: frozenset[UOp]
    """The last product of each group that the end of the loop does not wait for."""
    sums: frozenset[tuple[UOp, UOp]]
    """RANGE of the loop and LOAD of the sum, which must stay in its register."""
    groups: Mapping[UOp, int]
    """The number of groups that a BARRIER leaves in flight."""
    ends: Mapping[UOp, tuple[tuple[UOp, UOp], ...]]
    """By the END of a loop, the registers and products whose sums are waited for after it."""


@lru_cache(maxsize=8)
def products_in_flight(uops: tuple[UOp, ...]) -> InFlight:
    """The groups that a kernel leaves in flight: those of loops whose BARRIER permits it.

    Only if every sum of the loop is used by nothing but the store to its register.
    """
    by_last = product_groups(uops)
    stores = {u.src[1]: pointer_of(u.src[0]) for u in uops if u.op is Op.STORE}
    products: set[UOp] = set()
    sums: set[tuple[UOp, UOp]] = set()
    groups: dict[UOp, int] = {}
    ends: dict[UOp, tuple[tuple[UOp, UOp], ...]] = {}
    for end, own, body in loops_of(uops):
        barriers = [u for u in own if u.op is Op.BARRIER]
        found = [u for u in own if u in by_last]
        if not found or not any(u.arg for u in barriers):
            continue
        uses = Counter(source for u in body for source in u.src)
        loads = [by_last[u][0].src[2] for u in found]
        registers = [stores.get(u) for u in found]
        are_kept = all(
            register is not None and is_sum_in(load, register) and uses[u] == uses[load] == 1
            for u, load, register in zip(found, loads, registers, strict=True)
        )
        if are_kept:
            products |= set(found)
            sums |= {(end.src[1], load) for load in loads}
            groups |= {u: u.arg * len(found) for u in barriers if u.arg}
            ends[end] = tuple((stores[u], u) for u in found)
    return InFlight(frozenset(products), frozenset(sums), groups, ends)


class Wait(NamedTuple):
    """The wait for a group of products."""

    product: UOp
    """The last product of the group."""
    register: UOp | None
    """The register in which its sum is stored already, if any."""
    left: int
    """Groups that may still be in flight: those committed later."""


@lru_cache(maxsize=8)
def waits_before(uops: tuple[UOp, ...], are_kept: bool) -> Mapping[UOp, tuple[Wait, ...]]:
    """The groups that are waited for before a node, except those that a loop leaves in flight.

    The node is the first use of a sum, or a barrier or the end of a loop. Storing a sum in a
    register is not a use if sums `are_kept` there unchanged.
    """
    by_last, left = product_groups(uops), products_in_flight(uops).products
    uses = Counter(source for u in uops for source in u.src)
    found: dict[UOp, tuple[Wait, ...]] = {}
    begun: dict[UOp, int] = {}
    registers: dict[UOp, UOp] = {}
    count = 0
    for u in uops:
        if u.op is Op.STORE and are_kept and u.src[1] in begun and uses[u.src[1]] == 1:
            memory = pointer_of(u.src[0])
            if memory.op is Op.DEFINE_REG and memory not in registers.values():
                registers[u.src[1]] = memory
                continue
        needed = [group for group in begun if is_awaited(group, registers.get(group), u)]
        if needed:
            found[u] = tuple(
                Wait(group, registers.pop(group, None), count - begun.pop(group))
                for group in needed
            )
        if u in by_last:
            count += 1
            if u not in left:
                begun[u] = count
    return found


def is_awaited(group: UOp, register: UOp | None, u: UOp) -> bool:
    """True if a node needs the sum of a group, or is one that no group may be in flight across."""
    if u.op in GROUP_ENDS or group in u.src:
        return True
    is_access = register is not None and u.op in (Op.LOAD, Op.STORE)
    return is_access and pointer_of(u.src[0]) is register


def loops_of(uops: Sequence[UOp]) -> Iterator[tuple[UOp, list[UOp], list[UOp]]]:
    """The loops of a program: the END, the nodes of the loop without inner loops, and all nodes."""
    own: list[list[UOp]] = [[]]
    whole: list[list[UOp]] = [[]]
    for u in uops:
        if u.op is Op.RANGE:
            own.append([])
            whole.append([])
        elif u.op is Op.END:
            body = whole.pop()
            yield u, own.pop(), body
            whole[-1] += body
        else:
            own[-1].append(u)
            whole[-1].append(u)
