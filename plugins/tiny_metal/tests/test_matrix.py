"""simdgroup_matrix: each unit against NumPy on GPUs of mocked Macs, and where lanes hold elements.

The header that runs MSL here has its own formula of where a lane's elements are; that it is a
bijection, and the one of the units' maps, is tested here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy
import pytest
from matrix_programs import SIZES, MatrixPrograms, Sources, for_few_threads, noted
from tensor_programs import TensorPrograms

from tiny_metal.arch import ARCHS, limits_of, parsed
from tiny_metal.matrix import UNITS
from tinycore import Context, Tensor, dtypes
from tinycore.dtype import DType
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import Tensorize
from tinycore.plugin import register, unregister

OPERANDS: Final = {unit.a: unit for unit in UNITS}
PROGRAMS: Final = MatrixPrograms(
    TensorPrograms("METAL"),
    {dtype: f"{unit.name}_sum" for dtype, unit in OPERANDS.items()},
    dict.fromkeys(OPERANDS, dtypes.float32),
)
NARROW: Final = [dtypes.half, dtypes.bfloat16]

each_operand = pytest.mark.parametrize("dtype", OPERANDS, ids=lambda dtype: dtype.name)
each_narrow = pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: dtype.name)


@pytest.fixture(scope="module")
def gpu(mock: None) -> Iterator[None]:
    """An M3 that few threads keep busy."""
    from mock_metal.metal import Mac  # noqa: PLC0415
    from simulated_metal import M3, backend_of  # noqa: PLC0415

    mocked = Mac((M3,))
    register(for_few_threads(backend_of(mocked)))
    with Context(DEV="METAL"):
        yield
    unregister("METAL")
    assert mocked.misuses == []


@pytest.fixture
def sources(gpu: None) -> Iterator[Sources]:
    """Sources of kernels on the GPU."""
    with noted() as found:
        yield found


# --- where elements are


@pytest.mark.parametrize("operand", ["a", "b", "out"])
def test_lanes_hold_each_element_once(operand: str) -> None:
    """Rows and columns as MLX has them: q = lane // 4, (q & 4) + lane // 2 % 4 and so on."""
    lane, element = numpy.arange(32)[:, None], numpy.arange(2)[None]
    row = (lane // 4 & 4) + lane // 2 % 4 + 0 * element
    column = (lane // 4 & 2) * 2 + lane % 2 * 2 + element
    for unit in UNITS:
        held = unit.fragment(operand)
        places = {axis: held.map.place(axis, lane, element) for axis in held.axes}
        first, second = ("k", "n") if operand == "b" else (held.axes[0], held.axes[1])
        assert numpy.array_equal(numpy.broadcast_to(places[first], row.shape), row)
        assert numpy.array_equal(numpy.broadcast_to(places[second], column.shape), column)
    assert len({*zip(row.flat, column.flat, strict=True)}) == 64


def test_each_gpu_has_the_units_that_its_language_knows() -> None:
    kinds = {name: {unit.a.name for unit in limits_of(parsed(name)).matrix} for name in ARCHS}

    assert kinds["apple7"] == kinds["apple9"] == {"float16", "bfloat16", "float32"}
    assert kinds["apple7,3.0"] == {"float16", "float32"}
    assert kinds["mac2"] == kinds["mac2,2.4"] == set()
    assert limits_of(parsed("apple7,2.2")).matrix == ()
    assert [limits_of(parsed(name)).subgroup for name in ("apple7", "mac2")] == [32, 1]


# --- products


@pytest.mark.sample(15)
@pytest.mark.parametrize("size", SIZES, ids=str)
@each_operand
def test_a_product_is_numpys(dtype: DType, size: tuple[int, int, int], sources: Sources) -> None:
    PROGRAMS.is_numpys(dtype, size, sources)


@pytest.mark.slow
@each_narrow
def test_sums_of_narrow_products_are_single(dtype: DType, sources: Sources) -> None:
    PROGRAMS.is_summed_in_single(dtype, sources)


@pytest.mark.sample(4)
@each_operand
def test_what_is_around_a_product_is_in_its_kernel(dtype: DType, sources: Sources) -> None:
    PROGRAMS.takes_its_surroundings(dtype, sources)


@pytest.mark.sample(2)
@pytest.mark.parametrize("transposed", ["", "left", "right", "both"])
def test_operands_that_lie_the_other_way(transposed: str, sources: Sources) -> None:
    PROGRAMS.is_transposed(dtypes.half, transposed, sources)


def test_many_products_at_once(sources: Sources) -> None:
    PROGRAMS.is_batched(dtypes.half, sources)


@pytest.mark.sample(4)
@each_operand
def test_a_convolution_is_a_product(dtype: DType, sources: Sources) -> None:
    PROGRAMS.convolves(dtype, sources)


@pytest.mark.sample(4)
@each_operand
def test_attention_over_any_number_of_keys_is_one_kernel(dtype: DType, sources: Sources) -> None:
    PROGRAMS.attends(dtype, sources)


# --- plans, with nothing executed


@each_operand
def test_products_are_planned_for_the_unit_of_their_type(dtype: DType) -> None:
    left, right = (Tensor.empty(512, 512, dtype=dtype, device="NULL") for _ in range(2))
    ast = left.matmul(right, dtype=dtypes.float32).schedule()[-1].ast
    plan = plan_for(ast, limits_of(parsed("apple9")))

    assert [s.unit.name for s in plan if isinstance(s, Tensorize)] == [OPERANDS[dtype].name]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["apple7,3.0", "apple9"])
def test_clang_takes_large_products_as_msl(mock: None, arch: str) -> None:
    """Blocks of SIMD groups, each with several tiles, whose operands are staged."""
    from shader.compiler import compiled  # noqa: PLC0415

    target = parsed(arch)
    for unit in target.units:
        with noted() as sources, Context(DEV=f"NULL:MSL:{arch}"):
            left, right = (Tensor.empty(512, 512, dtype=unit.a).realize() for _ in range(2))
            left.matmul(right, dtype=dtypes.float32).realize()
        (source,) = (text for text in sources.texts if unit.name in text)
        assert source.count(f"{unit.name}_sum(") > 8
        compiled(source, target.language)
