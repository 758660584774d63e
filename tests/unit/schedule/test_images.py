"""Kernels that read and write images, and what a device without images gets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.unit.schedule.graphs import buffer, kernels, permute
from tinycore.dtype import ImageDType, dtypes
from tinycore.render.base import Limits, Renderer
from tinycore.schedule import limits, pipeline
from tinycore.schedule.limits import cut_for, is_image
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

WITH, WITHOUT = Limits(image=(64, 64)), Limits()
KIND = dtypes.imagef((2, 3))


def in_image(value: UOp, kind: ImageDType = KIND) -> UOp:
    return UOp(Op.CONTIGUOUS, kind.base, (value,), kind)


def slots(kernel: UOp) -> list[object]:
    found = [n for n in kernel.arg.ast.toposort() if n.op is Op.DEFINE_GLOBAL]
    return [n.dtype for n in sorted(found, key=lambda n: int(n.arg))]


def extents(kernel: UOp) -> list[int]:
    (end,) = (n for n in kernel.arg.ast.toposort() if n.op is Op.END)
    return [r.extent for r in end.src[1:]]


def test_an_image_is_stored_by_pixels() -> None:
    with cut_for(WITH):
        (kernel,) = kernels(in_image(buffer(3, 8) + 1.0))

    (store,) = (n for n in kernel.arg.ast.toposort() if n.op is Op.STORE)
    assert slots(kernel)[0] is KIND
    assert store.src[1].dtype is dtypes.float32.vec(4)
    assert extents(kernel) == [3, 2]


def test_rows_that_are_no_whole_pixels_are_one_row() -> None:
    with cut_for(WITH):
        (kernel,) = kernels(in_image(permute(buffer(8, 3), 1, 0) + 1.0))
        (ragged,) = kernels(in_image(buffer(8, 3) + 1.0))

    assert extents(kernel) == [3, 2]
    assert extents(ragged) == [6]


def test_a_device_without_images_has_plain_memory() -> None:
    with cut_for(WITHOUT):
        (kernel,) = kernels(in_image(buffer(3, 8) + 1.0))

    assert slots(kernel) == [dtypes.float32.ptr(24), dtypes.float32.ptr(24)]


def test_an_image_too_large_for_the_device_is_plain_memory() -> None:
    with cut_for(Limits(image=(2, 64))):
        (kernel,) = kernels(in_image(buffer(3, 8) + 1.0))

    assert slots(kernel)[0] is dtypes.float32.ptr(24)


def test_what_reads_an_image_has_it_in_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "fuse_rows", lambda memory: memory.launches)
    with cut_for(WITH):
        first, second = kernels(in_image(buffer(3, 8) + 1.0) * 2.0)

    assert slots(first)[0] is KIND
    assert slots(second) == [dtypes.float32.ptr(24), KIND]


def test_an_image_that_is_read_where_it_is_written_is_copied_first() -> None:
    memory = UOp(Op.BUFFER, dtypes.float32, buffer(24).src, KIND)
    change = UOp(Op.ASSIGN, dtypes.float32, (memory, memory + 1.0))

    with cut_for(WITH):
        found = kernels(change)

    assert [slots(kernel)[0] for kernel in found] == [dtypes.float32.ptr(24), KIND]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(image=(3, 2)), True),
        (Limits(image=(2, 2)), False),
        (Limits(image=(3, 1)), False),
        (Limits(image=None), False),
    ],
)
def test_an_image_fits_up_to_the_greatest_width_and_height(limits: Limits, expected: bool) -> None:
    with cut_for(limits):
        assert is_image(KIND, "PYTHON") is expected


@pytest.mark.parametrize("has", [True, False])
def test_a_device_says_itself_whether_it_has_images(
    has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its renderer may be that of a device with images: only the device knows of its memory."""
    device = SimpleNamespace(
        has=lambda ability: has and ability == "image",
        toolchain=SimpleNamespace(renderer=Renderer(WITH)),
    )
    monkeypatch.setattr(limits, "Device", {"ACME": device})

    assert is_image(KIND, "ACME") is has
    assert not is_image(dtypes.imagef((65, 3)), "ACME")
