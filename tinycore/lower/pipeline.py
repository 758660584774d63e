"""Passes from a kernel's graph to its linear form.

Floor 3'. In: the SINK of a kernel (stage "kernel" of `uop.verify`), a renderer, a plan. Out: a
`LinearKernel`, which the renderer turns into source. The names of the passes are those of DEBUG
and of golden files; their order is stated here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tinycore.config import settings
from tinycore.dtype import PointerDType
from tinycore.errors import UnsupportedError, VerifyError
from tinycore.lower.align import align_accesses
from tinycore.lower.cooperative import group_reductions, share_fills
from tinycore.lower.dims import extent_of, loops_to_launch, varying_sizes
from tinycore.lower.dtypes import lower_dtypes, stage_bits
from tinycore.lower.expand import expand
from tinycore.lower.hints import mark_nontemporal, mark_prefetches
from tinycore.lower.image_access import lower_images
from tinycore.lower.lanes import instructions, scalars
from tinycore.lower.linearize import linearize
from tinycore.lower.math import lower_math
from tinycore.lower.plan import planned
from tinycore.lower.predicate import gates
from tinycore.lower.registers import reduce_to_registers
from tinycore.lower.tighten import tighten
from tinycore.lower.tile import Plan, apply_plan
from tinycore.render.base import Limits, LinearKernel, Renderer, value_names
from tinycore.trace import PassTrace, Trace
from tinycore.uop.node import UOp
from tinycore.uop.op import Op
from tinycore.uop.pattern import RuleSet
from tinycore.uop.proportional import approximate_weights
from tinycore.uop.rewrite import rewrite
from tinycore.uop.symbolic import simplify
from tinycore.uop.text import to_text
from tinycore.uop.verify import verify

trace_kernel = Trace("kernel")
trace_linear = Trace("linear")
trace_passes = PassTrace("passes")


class Pass(NamedTuple):
    """One step of lowering."""

    name: str
    run: Callable[[UOp, Renderer], UOp]


def expand_loops(kernel: UOp, renderer: Renderer) -> UOp:
    """FILL loops are dealt out to threads; UNROLL and VECTOR loops become copies and lanes.

    Folds are over the steps that can change them.
    """
    return expand(share_fills(tighten(kernel), renderer.limits))


def by_limits(run: Callable[[UOp, Limits], UOp]) -> Callable[[UOp, Renderer], UOp]:
    """A pass that depends on nothing but the limits of the renderer's device."""
    return lambda kernel, renderer: run(kernel, renderer.limits)


def lower_gates(kernel: UOp, renderer: Renderer) -> UOp:
    """Merge the conditions of WHEREs around gated loads into the loads."""
    return rewrite(kernel, simplify + gates, name="gates")


def lower_values(kernel: UOp, renderer: Renderer) -> UOp:
    """Lower types and functions that the target lacks to those it has."""
    kernel = stage_bits(kernel, renderer)
    rules = lower_dtypes(renderer) + lower_math(renderer)
    return rewrite(kernel, rules, name="lower values")


def tidy(kernel: UOp, renderer: Renderer) -> UOp:
    """Final simplification, after everything is lowered; instructions of plugins lane by lane."""
    rules = simplify + gates + lower_math(renderer) + instructions
    return rewrite(kernel, rules, name="tidy")


def split_vectors(kernel: UOp, renderer: Renderer) -> UOp:
    """Lower arithmetic on vectors to that on lanes, for targets without the former."""
    return kernel if renderer.vector_ops else rewrite(kernel, scalars + simplify, name="scalars")


def begin_copies(kernel: UOp, limits: Limits) -> UOp:
    """Fills of shared memory by copies behind the threads' backs, where the hardware has them."""
    found: UOp = kernel if limits.copies is None else limits.copies(kernel)
    return found


def stream(kernel: UOp, limits: Limits) -> UOp:
    """Store large results non-temporally, and prefetch large operands."""
    return mark_prefetches(mark_nontemporal(kernel, limits), limits)


KERNEL_PIPELINE: Final = (
    Pass("expand", expand_loops),
    Pass("gates", lower_gates),
    Pass("group", by_limits(group_reductions)),
    Pass("registers", lambda kernel, _: reduce_to_registers(kernel)),
    Pass("launch", by_limits(loops_to_launch)),
    Pass("align", by_limits(align_accesses)),
    Pass("images", lower_images),
    Pass("lower", lower_values),
    Pass("scalars", split_vectors),
    Pass("tidy", tidy),
    Pass("copies", by_limits(begin_copies)),
    Pass("stream", by_limits(stream)),
)
"""The passes after tiling (`plan.py`, `tile.py`). A plan decides what is done; the passes ask the
device's limits only how: which alignment, copies and types there are."""


NO_RULES: Final[Mapping[str, RuleSet]] = {}


def verify_room(kernel: LinearKernel, renderer: Renderer) -> None:
    """Raise UnsupportedError when a kernel takes more buffers than the device binds."""
    taken, most = len(kernel.buffers), renderer.limits.buffers
    if most is not None and taken > most:
        raise UnsupportedError(
            f"kernel {kernel.name} takes {taken} buffers, the device binds {most}. Compute it in "
            "parts, each with a tensor of its own."
        )


def lower(
    kernel: UOp,
    renderer: Renderer,
    name: str,
    plan: Plan | None = None,
    added: Mapping[str, RuleSet] = NO_RULES,
) -> LinearKernel:
    """The linear form of a kernel under a plan; without one, under the cheapest proposed.

    `added` has rules that run before a pass, by its name.
    `NOOPT=1` leaves the loops as they are. `VERIFY=1` checks the graph at every stage.
    """
    if settings.VERIFY:
        verify(kernel, "kernel")
    if trace_kernel.on:
        trace_kernel(name, to_text(kernel))
    refuse_lacking(kernel, renderer)
    if plan is None and not settings.NOOPT:
        _, kernel = planned(kernel, renderer.limits)
    else:
        kernel = apply_plan(kernel, plan or ())
    if Op.EXP2 in renderer.approximate:
        kernel = approximate_weights(kernel)
    text = trace_passes.after("tile", to_text(kernel), "", name) if trace_passes.on else ""
    sizes: dict[str, UOp] = {}
    for step in KERNEL_PIPELINE:
        kernel = with_rules(kernel, renderer.rules, step.name)
        kernel = with_rules(kernel, added, step.name)
        if step.name == "launch":
            sizes = varying_sizes(kernel, renderer.limits)
        kernel = step.run(kernel, renderer)
        if trace_passes.on:
            text = trace_passes.after(step.name, to_text(kernel), text, name)
    if settings.VERIFY:
        verify(kernel, "lowered", renderer.native_ops | renderer.approximate)
    # A size may depend on a variable that no other part of the kernel reads.
    given = [n for size in sizes.values() for n in size.every(Op.DEFINE_VAR)]
    kernel, values = with_numbered_values(kernel.with_src((*kernel.src, *given)))
    extents = {name: extent_of(size, values) for name, size in sizes.items()}
    linear = LinearKernel(name, linearize(kernel), values, extents)
    verify_room(linear, renderer)
    if settings.VERIFY:
        verify(linear.uops, "linear", renderer.native_ops | renderer.approximate)
        verify_types(linear, renderer)
    if trace_linear.on:
        trace_linear(name, to_text(linear.uops))
    return linear


def verify_types(kernel: LinearKernel, renderer: Renderer) -> None:
    """Raise VerifyError for arithmetic on a type of which the language has it not."""
    for u in kernel.uops:
        if u.op in renderer.native_types and renderer.lacks(u.op, u.dtype):
            raise VerifyError(f"{renderer.name} has no {u.op.name} of {u.dtype!r}: {u!r}")


def with_numbered_values(kernel: UOp) -> tuple[UOp, tuple[str, ...]]:
    """A kernel whose variables are called value0, value1 ..., and the names they had, in order.

    A user chose those names, and what a user writes has no place in generated code.
    """
    found = sorted(kernel.every(Op.DEFINE_VAR), key=lambda n: n.arg[0])
    numbered = {
        node: UOp(node.op, node.dtype, (), (name, *node.arg[1:]))
        for node, name in zip(found, value_names(len(found)), strict=True)
    }
    return kernel.substitute(numbered) if found else kernel, tuple([n.arg[0] for n in found])


def with_rules(kernel: UOp, added: Mapping[str, RuleSet], stage: str) -> UOp:
    """A kernel after the rules that were added before a stage, if any were."""
    rules = added.get(stage)
    return kernel if rules is None else rewrite(kernel, rules, name=f"added to {stage}")


def refuse_lacking(kernel: UOp, renderer: Renderer) -> None:
    """Raise UnsupportedError for a kernel with a type that the target lacks."""
    if not renderer.lacking:
        return
    for node in kernel.toposort():
        kind = node.dtype.base if isinstance(node.dtype, PointerDType) else node.dtype
        if kind.scalar() in renderer.lacking:
            nearest = "float32" if kind.kind == "float" else "int32"
            raise UnsupportedError(
                f"{renderer.name} has no {kind.scalar().name}, and this kernel computes in it. "
                f"Cast to {nearest}, as in `x.cast(dtypes.{nearest})`, or use another device."
            )
