"""Products of narrow numbers with wide sums: each operand is widened once, and exactly."""

from __future__ import annotations

import numpy
import pytest

from tinycore import Tensor
from tinycore.dtype import DType, dtypes

Case = tuple[tuple[int, ...], tuple[int, ...], bool, bool]

CASES: dict[str, Case] = {
    "even": ((96, 64), (64, 128), False, False),
    "left turned": ((96, 64), (64, 128), True, False),
    "odd": ((77, 77), (77, 77), False, False),
    "right turned": ((77, 77), (77, 77), False, True),
    "long": ((203, 305), (305, 77), True, True),
    "few columns": ((61, 33), (33, 21), False, False),
    "one row": ((1, 300), (300, 200), False, False),
    "batched": ((3, 50, 40), (3, 40, 70), False, False),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def floats(shape: tuple[int, ...], dtype: DType, seed: int) -> Tensor:
    """Numbers of a narrow type on the CPU."""
    values = numpy.random.default_rng(seed).standard_normal(shape).astype(numpy.float32)
    return Tensor(values, device="CPU").cast(dtype).realize()


def laid_out(tensor: Tensor, turned: bool) -> Tensor:
    """The same matrix, its columns side by side in memory where it is turned."""
    return tensor.transpose(-1, -2).contiguous().realize().transpose(-1, -2) if turned else tensor


@cases
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16], ids=lambda d: d.name)
def test_products_of_narrow_floats(dtype: DType, case: Case) -> None:
    *shapes, left, right = case
    a, b = (floats(shape, dtype, seed) for seed, shape in enumerate(shapes))
    expected = a.cast(dtypes.float32).numpy() @ b.cast(dtypes.float32).numpy()

    found = laid_out(a, left).matmul(laid_out(b, right), dtype=dtypes.float32)

    numpy.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_windows_of_narrow_floats() -> None:
    x, weight = (
        floats((2, 8, 15, 17), dtypes.bfloat16, 0),
        floats((24, 8, 3, 3), dtypes.bfloat16, 1),
    )
    wide = [t.cast(dtypes.float32).realize() for t in (x, weight)]

    found = x.conv2d(weight, padding=1, dtype=dtypes.float32)

    expected = wide[0].conv2d(wide[1], padding=1).numpy()
    numpy.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
