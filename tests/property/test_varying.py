"""Programs with an axis of symbolic length, tiled for a processor: results are NumPy's.

Bounds and extents are random, and each program runs for every remainder of its length by the tile.
The interpreter runs the kernels, under limits of a processor, and raises where they read past the
end of a buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

import numpy
import pytest
from described_cards import card_named

from tests.unit.schedule.graphs import kernels
from tiny_testing.kernels import Array
from tinycore import Tensor, Variable
from tinycore.lower.cost import MOST_ROWS
from tinycore.lower.plan import plan_for
from tinycore.lower.tile import Split, Stage, Step
from tinycore.render.base import Limits
from tinycore.uop.size import Size

PROCESSORS: Final = (
    Limits(vector_bytes=32, shared_bytes=4 << 20),
    Limits(vector_bytes=64, vector_registers=32, cache_bytes=1 << 10, shared_bytes=4 << 20),
)
LENGTHS: Final = (1, 3, 8, 17, 32, 48, 65)
MOST: Final = 2 * MOST_ROWS + 1

Case = tuple[tuple[Array, ...], Callable[..., Tensor], Callable[..., Array]]
"""Arrays, a function of tensors and a length, and the same of arrays."""


def whole_numbers(random: Random, *shape: int) -> Array:
    """Numbers whose sums of products are exact."""
    draws = numpy.random.default_rng(random.getrandbits(32))
    return draws.integers(-2, 3, shape).astype("f")


def rows(random: Random, most: int, inner: int, columns: int) -> Case:
    """The first rows of a matrix, or of its transpose, times another one."""
    a, b = whole_numbers(random, most, inner), whole_numbers(random, inner, columns)
    if random.random() < 0.5:
        return (a, b.T), lambda a, b, n: a[:n] @ b.T + 1, lambda a, b, n: a[:n] @ b.T + 1
    return (a.T, b), lambda a, b, n: a[:, :n].T @ b, lambda a, b, n: a[:, :n].T @ b


def columns(random: Random, most: int, inner: int, rows: int) -> Case:
    """A matrix times the first columns of another one."""
    a, b = whole_numbers(random, rows, inner), whole_numbers(random, most, inner)
    return (a, b), lambda a, b, n: a @ b[:n].T, lambda a, b, n: a @ b[:n].T


def depth(random: Random, most: int, rows: int, columns: int) -> Case:
    """The first columns of a matrix times the first rows of another one."""
    a, b = whole_numbers(random, rows, most), whole_numbers(random, most, columns)
    return (a, b), lambda a, b, n: a[:, :n] @ b[:n], lambda a, b, n: a[:, :n] @ b[:n]


def batches(random: Random, most: int, inner: int, columns: int) -> Case:
    """Several products, each of the first rows of a matrix; in half precision, which is widened."""
    a, b = whole_numbers(random, 2, most, inner), whole_numbers(random, 2, inner, columns)
    held = (a.astype("float16"), b.astype("float16"))
    return held, lambda a, b, n: a[:, :n].float() @ b.float(), lambda a, b, n: a[:, :n] @ b


def sums(random: Random, most: int, rows: int, others: int) -> Case:
    """Sums of the first elements of rows, less their greatest."""
    x = whole_numbers(random, rows, most)
    return (
        (x,),
        lambda x, n: (x[:, :n] - x[:, :n].max(1, keepdim=True)).sum(1),
        (lambda x, n: (x[:, :n] - x[:, :n].max(1, keepdims=True)).sum(1)),
    )


def overwritten(random: Random, most: int, inner: int, others: int) -> Case:
    """The first rows of a matrix replaced by products of them; the others stay."""
    a, b = whole_numbers(random, most, inner), whole_numbers(random, inner, inner)

    def replaced(a: Tensor, b: Tensor, n: Size) -> Tensor:
        result = (a + 0).realize()
        result[:n] = result[:n] @ b
        return result

    return (a, b), replaced, lambda a, b, n: numpy.concatenate([a[:n] @ b, a[n:]])


def elements(random: Random, most: int, rows: int, others: int) -> Case:
    """Elements of a vector, and of the first columns of a matrix."""
    x, y = whole_numbers(random, rows, most), whole_numbers(random, most)
    return (x, y), lambda x, y, n: x[:, :n] * 2 + y[:n], lambda x, y, n: x[:, :n] * 2 + y[:n]


CASES: Final = (rows, columns, depth, batches, sums, overwritten, elements)


@pytest.mark.sample(3)
@pytest.mark.parametrize("seed", range(70))
def test_results_are_numpys_for_every_remainder(seed: int) -> None:
    random = Random(seed)
    most = random.choice((random.randint(2, MOST), 2 * MOST_ROWS))
    make = CASES[seed % len(CASES)]
    arrays, compute, expected = make(random, most, random.choice(LENGTHS), random.choice(LENGTHS))
    length = Variable("length", 1, most)
    values = [
        random.choice(values)
        for remainder in range(MOST_ROWS)
        if (values := [n for n in range(1, most + 1) if n % MOST_ROWS == remainder])
    ]

    with card_named("VARYING", random.choice(PROCESSORS)):
        tensors = [Tensor(x).realize() for x in arrays]
        for value in values:
            found = compute(*tensors, length.bind(value)).numpy()
            numpy.testing.assert_array_equal(found, expected(*arrays, value), f"{make}, {value}")


@pytest.mark.parametrize("limits", PROCESSORS)
def test_axes_of_symbolic_length_get_the_tiles_that_fixed_ones_get(limits: Limits) -> None:
    def tiles(rows: int | Size, columns: int | Size) -> list[Step]:
        x, weight = (Tensor.empty(*s, device="PYTHON").realize() for s in ((512, 576), (500, 576)))
        plan = plan_for(kernels((x[:rows] @ weight[:columns].T).uop)[-1].arg.ast, limits)
        return [step for step in plan if isinstance(step, Split | Stage)]

    fixed = tiles(512, 500)
    assert tiles(Variable("rows", 1, 512).bind(9), 500) == fixed
    assert tiles(512, Variable("columns", 1, 500).bind(9)) == fixed
