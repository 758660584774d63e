"""Illegal graphs, and the message beside each."""

from collections.abc import Callable

import pytest

from tinycore.dtype import dtypes
from tinycore.errors import ArgumentError, VerifyError
from tinycore.uop.node import UOp, unique
from tinycore.uop.op import AxisKind, Merge, Op
from tinycore.uop.verify import Stage, verify

f32 = dtypes.float32
device = UOp(Op.DEVICE, dtypes.void, (), "CPU")
i = UOp.range(8, 0)
j = UOp.range(4, 1)
buffer = UOp(Op.DEFINE_GLOBAL, f32.ptr(8), (), 0)
flag = UOp(Op.DEFINE_VAR, dtypes.bool, (), ("flag", False, True))


def tensor(*shape: int, dtype: object = f32) -> UOp:
    size = 1
    for n in shape:
        size *= n
    memory = UOp(Op.BUFFER, dtype, (device, unique()), size)  # type: ignore[arg-type]
    return UOp(Op.RESHAPE, dtype, (memory,), shape)  # type: ignore[arg-type]


def index(place: UOp, *gate: UOp) -> UOp:
    return UOp(Op.INDEX, buffer.dtype, (buffer, place, *gate))


def load(place: UOp, *gate: UOp, alternative: tuple[UOp, ...] = ()) -> UOp:
    return UOp(Op.LOAD, f32, (index(place, *gate), *alternative))


def store(place: UOp, value: UOp) -> UOp:
    return UOp(Op.STORE, dtypes.void, (index(place), value))


def end(body: UOp, *ranges: UOp) -> UOp:
    return UOp(Op.END, dtypes.void, (body, *ranges))


def problem(graph: UOp | list[UOp], stage: Stage) -> str:
    """The first line of the error, without the stage."""
    with pytest.raises(VerifyError) as caught:
        verify(graph, stage)
    return str(caught.value).splitlines()[0].removeprefix(f"illegal at stage {stage!r}: ")


def merge(size: int, how: Merge) -> UOp:
    return UOp(Op.MERGE_AXIS, f32, (tensor(size), tensor(size)), how)


image = UOp(Op.DEFINE_GLOBAL, dtypes.imagef((8, 16)), (), 1)


def pixel(*sources: UOp) -> UOp:
    return UOp(Op.PIXEL, image.dtype, (image, *sources))


# --- what is legal


def test_elementwise_kernel_is_legal() -> None:
    verify(UOp.sink(end(store(i, load(i) * 2.0 + 1.0), i)), "kernel")


def test_gated_load_with_an_alternative_is_legal() -> None:
    gate = i < 4
    value = load(i + 4, gate, alternative=(UOp.const(f32, 0.0),))

    verify(UOp.sink(end(store(i, value), i)), "kernel")


def test_tensor_graph_is_legal() -> None:
    verify(UOp.sink(tensor(2, 3) * tensor(2, 3)), "tensor")


@pytest.mark.parametrize(
    ("size", "how"), [(96, Merge(16, 16, 8)), (96, Merge(16, 32, 2)), (72, Merge(1, 2, 2))]
)
def test_merge_of_whole_pieces_is_legal(size: int, how: Merge) -> None:
    verify(merge(size, how), "tensor")


def test_pixels_are_legal() -> None:
    read = UOp(Op.LOAD, f32.vec(4), (pixel(i, j),))
    inside = UOp(Op.STORE, dtypes.void, (pixel(i, j, i < 4), read))

    for place in (pixel(i, j), pixel(i, j, flag)):
        verify(place, "lowered")
    verify(UOp.sink(end(inside, i, j)), "lowered")


def test_loop_in_order_is_legal() -> None:
    eight = UOp.index(8)
    place, value = index(i), load(i)
    write = store(i, value)

    verify([buffer, eight, i, place, value, write, end(write, i)], "linear")


# --- every stage


FAULTS: list[tuple[str, Stage, Callable[[], UOp], str]] = [
    (
        "arity",
        "kernel",
        lambda: UOp(Op.ADD, dtypes.index, (i,)),
        "ADD takes 2 sources, here are 1",
    ),
    (
        "dtype of the row",
        "kernel",
        lambda: UOp(Op.CMPLT, dtypes.index, (i, i)),
        "the sources imply dtypes.bool, the node says dtypes.index",
    ),
    (
        "operands of two dtypes",
        "kernel",
        lambda: UOp(Op.ADD, dtypes.index, (i, UOp.const(f32, 1.0))),
        "operands of different dtypes: dtypes.index, dtypes.float32",
    ),
    (
        "condition that is no bool",
        "kernel",
        lambda: UOp(Op.WHERE, dtypes.index, (i, i, i)),
        "the condition is dtypes.index, it should be dtypes.bool",
    ),
    (
        "choices of two dtypes",
        "kernel",
        lambda: UOp(Op.WHERE, dtypes.index, (flag, i, UOp.const(f32, 1.0))),
        "choices of dtypes.index and dtypes.float32",
    ),
    (
        "bits of another width",
        "kernel",
        lambda: UOp(Op.BITCAST, dtypes.int8, (UOp.const(f32, 1.0),)),
        "dtypes.float32 and dtypes.int8 differ in width",
    ),
    (
        "square root of an integer",
        "kernel",
        lambda: UOp(Op.SQRT, dtypes.index, (i,)),
        "SQRT is for floats, not dtypes.index",
    ),
    (
        "integer division of floats",
        "kernel",
        lambda: UOp(Op.IDIV, f32, (UOp.const(f32, 1.0),) * 2),
        "IDIV is for integers, not dtypes.float32",
    ),
    (
        "bits of a float",
        "kernel",
        lambda: UOp(Op.AND, f32, (UOp.const(f32, 1.0),) * 2),
        "AND is for integers and bool, not dtypes.float32",
    ),
    (
        "negated bool",
        "kernel",
        lambda: UOp(Op.NEG, dtypes.bool, (flag,)),
        "NEG is not for bool; use CMPNE with True",
    ),
    (
        "vector constant",
        "kernel",
        lambda: UOp(Op.CONST, f32.vec(4), (), 1.0),
        "a CONST of dtypes.float32.vec(4); vectors are VECTORIZE of equal CONSTs",
    ),
    (
        "constant out of range",
        "kernel",
        lambda: UOp(Op.CONST, dtypes.uint8, (), 300),
        "300 is no value of dtypes.uint8",
    ),
    (
        "constant of another type",
        "kernel",
        lambda: UOp(Op.CONST, dtypes.uint8, (), "3"),
        "'3' is no bool, int or float",
    ),
    (
        "kernel op in a tensor graph",
        "tensor",
        lambda: i + 1,
        "RANGE does not occur at this stage",
    ),
    (
        "tensor op in a kernel",
        "kernel",
        lambda: tensor(2),
        "DEVICE does not occur at this stage",
    ),
    # tensor graphs
    (
        "shapes that differ",
        "tensor",
        lambda: UOp(Op.ADD, f32, (tensor(2, 3), tensor(3, 2))),
        "operands of shapes (2, 3), (3, 2)",
    ),
    (
        "reshape to another size",
        "tensor",
        lambda: UOp(Op.RESHAPE, f32, (tensor(2, 3),), (2, 2)),
        "shape (2, 3) cannot become (2, 2)",
    ),
    (
        "expansion of an axis",
        "tensor",
        lambda: UOp(Op.EXPAND, f32, (tensor(2, 3),), (4, 3)),
        "shape (2, 3) cannot be expanded to (4, 3)",
    ),
    (
        "order with an axis twice",
        "tensor",
        lambda: UOp(Op.PERMUTE, f32, (tensor(2, 3),), (0, 0)),
        "(0, 0) is no order of 2 axes",
    ),
    (
        "negative padding",
        "tensor",
        lambda: UOp(Op.PAD, f32, (tensor(2),), ((0, -1),)),
        "negative padding ((0, -1),)",
    ),
    (
        "box outside of the shape",
        "tensor",
        lambda: UOp(Op.SHRINK, f32, (tensor(2),), ((0, 3),)),
        "((0, 3),) is no box inside shape (2,)",
    ),
    (
        "flip of too few axes",
        "tensor",
        lambda: UOp(Op.FLIP, f32, (tensor(2, 3),), (True,)),
        "1 entries for 2 axes",
    ),
    (
        "reduction by a difference",
        "tensor",
        lambda: UOp(Op.REDUCE_AXIS, f32, (tensor(2),), (Op.SUB, (0,))),
        "Op.SUB is no reduction",
    ),
    (
        "reduction of a missing axis",
        "tensor",
        lambda: UOp(Op.REDUCE_AXIS, f32, (tensor(2),), (Op.ADD, (1,))),
        "axes (1,) of 1",
    ),
    (
        "reduction of one axis twice",
        "tensor",
        lambda: UOp(Op.REDUCE_AXIS, f32, (tensor(2, 3),), (Op.ADD, (1, 1))),
        "axes (1, 1) of 2",
    ),
    (
        "merge of keys and other values",
        "tensor",
        lambda: UOp(Op.MERGE_AXIS, f32, (tensor(96), tensor(48)), Merge(16, 32, 8)),
        "keys of shape (96,) for values of (48,)",
    ),
    *[
        (
            f"merge of {name}",
            "tensor",
            lambda size=size, how=how: merge(size, how),
            f"{how} of {size} elements",
        )
        for name, size, how in [
            ("runs that are no power of two", 96, Merge(24, 48, 8)),
            ("runs that lose a part of the shorter", 96, Merge(16, 8, 8)),
            ("runs that keep more than there is", 96, Merge(16, 64, 8)),
            ("pieces of one element", 96, Merge(16, 32, 1)),
            ("pieces that cut what is kept", 64, Merge(16, 24, 16)),
            ("pieces that cut the last runs", 96, Merge(64, 128, 64)),
        ]
    ],
    # kernels
    (
        "constant with a device",
        "kernel",
        lambda: UOp(Op.CONST, f32, (UOp.index(0),), 1.0),
        "a CONST in a kernel has no sources",
    ),
    (
        "buffer that is no pointer",
        "kernel",
        lambda: UOp(Op.DEFINE_GLOBAL, f32, (), 0),
        "the dtype is dtypes.float32, it should be a pointer in global memory",
    ),
    (
        "counter of another dtype",
        "kernel",
        lambda: UOp(Op.RANGE, dtypes.int32, (UOp.index(3),), i.arg),
        "counters are of dtypes.index, not dtypes.int32",
    ),
    (
        "index into a value",
        "kernel",
        lambda: UOp(Op.INDEX, f32, (UOp.const(f32, 1.0), i)),
        "dtypes.float32 is no pointer",
    ),
    (
        "index of another dtype",
        "kernel",
        lambda: index(UOp.const(dtypes.int32, 0)),
        "the index is of dtypes.int32, it should be dtypes.index",
    ),
    (
        "gate of another dtype",
        "kernel",
        lambda: index(i, j),
        "the gate is of dtypes.index, it should be dtypes.bool",
    ),
    (
        "index that is outside for sure",
        "kernel",
        lambda: index(i + 8),
        "index 8..15 is outside of 8 elements",
    ),
    (
        "gated load without an alternative",
        "kernel",
        lambda: load(i, i < 3),
        "a gated LOAD needs an alternative",
    ),
    (
        "alternative without a gate",
        "kernel",
        lambda: load(i, alternative=(UOp.const(f32, 0.0),)),
        "an alternative without a gate",
    ),
    (
        "load of another dtype",
        "kernel",
        lambda: UOp(Op.LOAD, dtypes.int32, (index(i),)),
        "the memory holds dtypes.float32, the value is dtypes.int32",
    ),
    (
        "store of another dtype",
        "kernel",
        lambda: store(i, i),
        "the memory holds dtypes.float32, the value is dtypes.index",
    ),
    (
        "store to a value",
        "kernel",
        lambda: UOp(Op.STORE, dtypes.void, (i, i)),
        "STORE writes at an INDEX, not RANGE",
    ),
    (
        "end of no loop",
        "kernel",
        lambda: end(store(i, load(i)), i + 1),
        "END is over RANGEs, not ADD",
    ),
    (
        "reduction by a quotient",
        "kernel",
        lambda: UOp(Op.REDUCE, f32, (load(i), i), Op.FDIV),
        "Op.FDIV is no reduction",
    ),
    (
        "loop left open",
        "kernel",
        lambda: UOp.sink(store(i, load(i))),
        "loops are still open: r0",
    ),
    (
        "lanes that do not fill the vector",
        "lowered",
        lambda: UOp(Op.VECTORIZE, f32.vec(4), (load(i),) * 3),
        "3 lanes of dtypes.float32 are no dtypes.float32.vec(4)",
    ),
    (
        "lane that is not there",
        "lowered",
        lambda: UOp(Op.EXTRACT, f32, (UOp(Op.VECTORIZE, f32.vec(2), (load(i),) * 2),), (2,)),
        "lanes (2,) of 1 dtypes.float32.vec(2) are no dtypes.float32",
    ),
    (
        "pixel without a row",
        "lowered",
        lambda: pixel(i),
        "PIXEL takes an image, a column, a row and at most a gate, here are 2",
    ),
    (
        "pixel with two gates",
        "lowered",
        lambda: pixel(i, j, flag, flag),
        "PIXEL takes an image, a column, a row and at most a gate, here are 5",
    ),
    (
        "pixel of plain memory",
        "lowered",
        lambda: UOp(Op.PIXEL, buffer.dtype, (buffer, i, j)),
        "dtypes.float32.ptr(8) is no image",
    ),
    (
        "column of another dtype",
        "lowered",
        lambda: pixel(UOp.const(dtypes.int32, 0), j),
        "a coordinate is of dtypes.int32, it should be dtypes.index",
    ),
    (
        "row of another dtype",
        "lowered",
        lambda: pixel(i, UOp.const(dtypes.int32, 0)),
        "a coordinate is of dtypes.int32, it should be dtypes.index",
    ),
    (
        "gate of a pixel that is no bool",
        "lowered",
        lambda: pixel(i, j, i),
        "the gate is of dtypes.index",
    ),
    (
        "load of one channel",
        "lowered",
        lambda: UOp(Op.LOAD, f32, (pixel(i, j),)),
        "a pixel is dtypes.float32.vec(4), the value is dtypes.float32",
    ),
    (
        "load of a pixel with a gate",
        "lowered",
        lambda: UOp(Op.LOAD, f32.vec(4), (pixel(i, j, flag),)),
        "a PIXEL outside of the image is zero, and needs no gate",
    ),
    (
        "store of one channel",
        "lowered",
        lambda: UOp(Op.STORE, dtypes.void, (pixel(i, j), UOp.const(f32, 1.0))),
        "a pixel is dtypes.float32.vec(4), the value is dtypes.float32",
    ),
    (
        "element of an image after lowering",
        "lowered",
        lambda: UOp(Op.INDEX, image.dtype, (image, i)),
        "an image is read by PIXEL",
    ),
    (
        "reduction after lowering",
        "lowered",
        lambda: UOp(Op.REDUCE, f32, (load(i), i), Op.ADD),
        "REDUCE does not occur at this stage",
    ),
]


@pytest.mark.parametrize(
    ("stage", "graph", "message"),
    [fault[1:] for fault in FAULTS],
    ids=[fault[0] for fault in FAULTS],
)
def test_fault_is_named(stage: Stage, graph: Callable[[], UOp], message: str) -> None:
    assert problem(graph(), stage) == message


def test_message_shows_the_node() -> None:
    with pytest.raises(VerifyError) as caught:
        verify(index(i + 8), "kernel")

    assert str(caught.value).splitlines()[1:] == [
        "  in <UOp INDEX dtypes.float32.ptr(8) (DEFINE_GLOBAL, ADD)>",
        "  = INDEX(DEFINE_GLOBAL[0], (r0 + 8))",
    ]


# --- order


def test_source_must_come_first() -> None:
    assert problem([i], "linear") == "CONST is used before it is defined"


def test_definition_occurs_once() -> None:
    assert problem([buffer, buffer], "linear") == "DEFINE_GLOBAL occurs twice"


def test_register_is_read_again_after_it_was_written() -> None:
    zero, one = UOp.index(0), UOp.const(f32, 1.0)
    register = UOp(Op.DEFINE_REG, f32.ptr(1, "register"), (), 0)
    place = UOp(Op.INDEX, register.dtype, (register, zero))
    read = UOp(Op.LOAD, f32, (place,))
    write = UOp(Op.STORE, dtypes.void, (place, read + one))

    verify([register, zero, one, place, read, read + one, write, read], "linear")


def test_loop_must_be_closed() -> None:
    assert problem([UOp.index(8), i], "linear") == "the loop is never closed"


def test_inner_loop_is_closed_first() -> None:
    nothing = UOp(Op.GROUP, dtypes.void)
    program = [UOp.index(8), UOp.index(4), i, j, end(nothing, i)]

    assert problem(program, "linear") == "END closes r0, the innermost open loop is r1"


def test_end_closes_one_loop() -> None:
    nothing = UOp(Op.GROUP, dtypes.void)
    program = [UOp.index(8), UOp.index(4), i, j, end(nothing, i, j)]

    assert problem(program, "linear") == "END closes one RANGE, here are 2"


def test_value_of_a_loop_stays_inside() -> None:
    nothing = UOp(Op.GROUP, dtypes.void)
    one = UOp.index(1)
    program = [UOp.index(8), one, i, i + 1, end(nothing, i), (i + 1) * one]

    assert problem(program, "linear") == "ADD is used outside of its loop"


def test_other_axes_are_gone_before_rendering() -> None:
    lane = UOp.range(4, 3, AxisKind.VECTOR)
    nothing = UOp(Op.GROUP, dtypes.void)

    assert problem([UOp.index(4), lane, end(nothing, lane)], "linear") == (
        "an axis of kind VECTOR is no loop"
    )


def test_floor_division_is_gone_before_rendering() -> None:
    four, n = UOp.index(4), UOp.variable("n", 0, 9)

    assert problem([n, four, n // four], "linear") == "FLOORDIV does not occur at this stage"


def test_unknown_stage_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"no stage is named 'middle'\. Stages: tensor, kernel"):
        verify(i, "middle")  # type: ignore[arg-type]
