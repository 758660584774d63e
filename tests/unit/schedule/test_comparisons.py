"""Values that are compared with themselves are stored, if kernels may round them differently."""

from __future__ import annotations

import pytest

from tests.unit.schedule.graphs import buffer, expand, reshape, total
from tinycore import Context, Tensor
from tinycore.dtype import dtypes
from tinycore.errors import VerifyError
from tinycore.schedule.pipeline import SCHEDULE_PIPELINE, run_passes
from tinycore.schedule.state import State
from tinycore.schedule.storage import Reason, Storage
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

LEAF = [1.1, 0.3]


def compared_values(x: UOp) -> list[UOp]:
    """Values stored for the comparison of `x` with its maximum."""
    top = expand(total(x, *range(len(x.shape)), op=Op.MAX), x.shape)
    reasons = Storage([x.alu(Op.CMPEQ, top)]).choose().reasons
    return [n for n, reason in reasons.items() if reason is Reason.COMPARED]


def test_a_product_in_a_sum_is_stored() -> None:
    x = buffer(4) * 1.3 - 0.3

    assert compared_values(x) == [x]


def test_values_that_every_kernel_rounds_alike_stay_fused() -> None:
    x = buffer(4)

    assert compared_values(x + 0.3) == []
    assert compared_values(x * 1.3) == []
    assert compared_values((x + 0.3).alu(Op.MAX, x)) == []


def test_a_value_that_is_rounded_twice_is_stored() -> None:
    for x in (buffer(4) * 2.0 - 0.3, (buffer(4) + 0.3) * 1.3):
        assert compared_values(x) == [x]


def test_two_roundings_of_a_small_float_are_stored() -> None:
    x = buffer(4, dtype=dtypes.bfloat16)
    twice = (x + 0.3) * 1.3

    assert compared_values(x + 0.3) == []
    assert compared_values(twice) == [twice]


def test_a_comparison_at_one_point_stores_nothing() -> None:
    x = buffer(4) * 1.3 - 0.3

    for other in (x, x.alu(Op.MAX, buffer(4))):
        assert Reason.COMPARED not in Storage([x.alu(Op.CMPNE, other)]).choose().reasons.values()


def test_pairs_of_elements_are_compared_from_memory() -> None:
    x = buffer(4) * 1.3 - 0.3
    rows, columns = reshape(x, (4, 1)), reshape(x, (1, 4))
    pairs = expand(rows, (4, 4)).alu(Op.CMPLT, expand(columns, (4, 4)))

    assert Storage([pairs]).choose().reasons[x] is Reason.COMPARED


def test_a_comparison_with_a_value_computed_again_is_illegal() -> None:
    x = buffer(4) * 1.3 - 0.3
    root = x.alu(Op.CMPEQ, expand(total(x, 0, op=Op.MAX), (4,)))
    state = run_passes(State((root,)), last="choose storage")
    (check,) = [p.check for p in SCHEDULE_PIPELINE if p.name == "choose storage"]
    del state.storage.reasons[x]

    with pytest.raises(VerifyError, match="is compared with itself, computed again"):
        check(state)


def maximum_beside_another_use(x: Tensor) -> tuple[Tensor, Tensor]:
    product = x * 1.3
    return (product - 0.3).max(), product.relu().sum()


def test_the_gradient_of_a_maximum_arrives_beside_another_use() -> None:
    x = Tensor(LEAF).realize()
    top, other = maximum_beside_another_use(x)

    assert (top * 100 + other).gradient(x)[0].tolist() == pytest.approx([131.3, 1.3])


def test_the_gradient_of_a_maximum_that_was_read_before_arrives() -> None:
    x = Tensor(LEAF).realize()
    top, other = maximum_beside_another_use(x)
    top.item()

    assert (top * 100 + other).gradient(x)[0].tolist() == pytest.approx([131.3, 1.3])


def test_a_maximum_equals_an_element_beside_another_use() -> None:
    product = Tensor(LEAF).realize() * 1.3
    x = product - 0.3
    for hit in (x == x.max(), x - x.max() == 0):
        assert (hit.where(100, 0) + product).tolist() == pytest.approx([101.43, 0.39])


def test_the_gradient_of_an_extreme_that_is_scattered_into_a_part_arrives() -> None:
    numbers = [[(7 * row + 11 * column) % 19 / 9 for column in range(6)] for row in range(5)]
    x = Tensor(numbers).realize()
    product = x * 1.3
    y = product + x.flip(1)
    index, low = Tensor([[2], [0], [5]]), Tensor([[-9.0]] * 3)
    chosen = y.scatter_reduce(1, index, low, "amax")  # into three rows

    assert chosen.sum().gradient(product)[0].tolist() == [[1.0] * 6] * 5


def test_a_value_is_compared_with_what_was_written_of_it() -> None:
    x, target = buffer(4) * 1.3 - 0.3, buffer(4)
    written = UOp(Op.ASSIGN, x.dtype, (target, x))

    reasons = Storage([x.alu(Op.CMPEQ, written)]).choose().reasons
    assert reasons[x] is Reason.COMPARED


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_maxima_of_small_floats_pass_their_gradient_whole(dtype: str) -> None:
    with Context(VERIFY=1):
        x = Tensor([(7 * n % 31) / 9 for n in range(64)], dtype=dtype).realize().reshape(8, 8)
        product = x * 1.3
        loss = (product * product - 0.3).amax(-1).sum() + (product * 0).sum()
        (slope,) = loss.gradient(product)

    assert slope.ne(0).sum(-1).tolist() == [1] * 8
