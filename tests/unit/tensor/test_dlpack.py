"""DLPack, what others get: the memory itself, with its owner, or a copy; refused where not."""

from __future__ import annotations

import weakref

import numpy
import pytest
import torch
from lending import buffer, floats, need_host_lender, realized
from torch.utils.dlpack import from_dlpack

from tinycore.dtype import DType, dtypes
from tinycore.errors import SharingError
from tinycore.tensor import Tensor
from tinycore.tensor.interop.dlpack import DLPACK_DTYPES, IS_COPIED, contents

TORCH = {
    dtypes.bool: torch.bool,
    dtypes.uint16: torch.uint16,
    dtypes.int64: torch.int64,
    dtypes.bfloat16: torch.bfloat16,
    dtypes.fp8e4m3: torch.float8_e4m3fn,
    dtypes.fp8e5m2: torch.float8_e5m2,
    dtypes.fp8e4m3fnuz: torch.float8_e4m3fnuz,
    dtypes.fp8e5m2fnuz: torch.float8_e5m2fnuz,
    dtypes.float64: torch.float64,
}


@pytest.fixture(autouse=True)
def engine(target: str) -> None:
    if target == "reference":
        pytest.skip("the evaluator has no buffers to look at")
    need_host_lender(target)


def test_numpy_and_torch_get_the_memory_itself() -> None:
    x = realized([[1.0, 2.0], [3.0, 4.0]])
    array, theirs = numpy.from_dlpack(x), from_dlpack(x)
    own = buffer(x).to_cpu()

    assert array.ctypes.data == theirs.data_ptr() == own.ctypes.data
    theirs[1, 1] = 8  # NumPy before 2.3 writes to nothing that it was lent
    assert x.tolist() == array.tolist() == [[1.0, 2.0], [3.0, 8.0]]


def test_a_consumer_keeps_the_memory_alive() -> None:
    x = realized([1.0, 2.0])
    watch = weakref.ref(buffer(x))
    array, theirs = numpy.from_dlpack(x), from_dlpack(x)

    del x
    assert array.tolist() == theirs.tolist() == [1.0, 2.0]
    del array
    assert watch() is not None
    del theirs
    assert watch() is None


def test_a_capsule_nobody_takes_gives_the_memory_back() -> None:
    x = realized([1.0, 2.0])
    watch = weakref.ref(buffer(x))
    capsules = [x.__dlpack__(), x.__dlpack__(max_version=(1, 0))]

    del x
    assert watch() is not None
    del capsules
    assert watch() is None


@pytest.mark.parametrize("dtype", dtypes.all, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("version", [None, (1, 0), (2, 0)], ids=str)
def test_every_dtype_has_its_code(dtype: DType, version: tuple[int, int] | None) -> None:
    x = realized([1, 0, 1], dtype)
    name, managed = contents(capsule := x.__dlpack__(max_version=version))
    found = managed.tensor.dtype

    assert capsule
    assert name == (b"dltensor" if version is None else b"dltensor_versioned")
    assert DLPACK_DTYPES[found.code, found.bits] is dtype
    assert found.lanes == 1
    if version is not None:
        assert (managed.version.major, managed.version.minor, managed.flags) == (1, 1, 0)


@pytest.mark.parametrize("dtype", TORCH, ids=lambda dtype: dtype.name)
def test_torch_reads_back_what_it_was_given(dtype: DType) -> None:
    x = realized([1, 0, 1], dtype)
    theirs = from_dlpack(x)

    assert theirs.dtype is TORCH[dtype]
    assert theirs.double().tolist() == [1.0, 0.0, 1.0]
    back = Tensor.from_dlpack(theirs)
    assert back.dtype is dtype
    assert buffer(back).to_cpu().ctypes.data == theirs.data_ptr()


def test_views_are_shared_in_strides() -> None:
    x = realized(floats(4, 6))
    whole = from_dlpack(x)

    for view, expected in (
        (x.permute(1, 0), whole.T),
        (x[1:3, 2:], whole[1:3, 2:]),
        (x[::2, 1], whole[::2, 1]),
        (x.reshape(2, 2, 6)[:, 1], whole.reshape(2, 2, 6)[:, 1]),
    ):
        found = from_dlpack(view)
        assert (found.data_ptr(), found.stride()) == (expected.data_ptr(), expected.stride())
        assert found.shape == expected.shape


def test_what_has_no_memory_is_copied_and_keeps_its_graph() -> None:
    x = realized([1.0, 2.0])

    for lazy in (x + 1, x.flip(0), x.expand(3, 2), Tensor(2.0), x.pad((1, 1))):
        node = lazy.uop
        _, managed = contents(capsule := lazy.__dlpack__(max_version=(1, 1)))
        assert capsule
        assert managed.flags == IS_COPIED
        assert from_dlpack(lazy).tolist() == lazy.tolist()
        assert lazy.uop is node
        with pytest.raises(SharingError, match=r"has no memory to share: realize\(\) it first"):
            lazy.__dlpack__(copy=False)


def test_a_pending_assignment_is_made_first() -> None:
    x = Tensor.zeros(2)
    array = numpy.from_dlpack(x)
    x.assign(Tensor([3.0, 4.0])).realize()

    assert array.tolist() == [3.0, 4.0]


def test_copy_makes_another_memory() -> None:
    x = realized([1.0, 2.0])
    array = numpy.from_dlpack(x, copy=True)

    assert array.tolist() == [1.0, 2.0]
    assert array.ctypes.data != buffer(x).to_cpu().ctypes.data


def test_sizes_without_elements_or_axes() -> None:
    assert numpy.from_dlpack(Tensor.zeros(0, 3)).shape == (0, 3)
    assert numpy.from_dlpack(realized(2.5).contiguous().realize()).tolist() == 2.5
    assert Tensor.from_dlpack(torch.zeros(2, 0)).shape == (2, 0)
    assert Tensor.from_dlpack(numpy.array(2.5)).item() == 2.5


def test_other_devices_and_streams_are_refused() -> None:
    x = realized([1.0])

    assert x.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError, match=r"cannot export to DLDevice \(2, 0\)"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="the host has no streams, got stream=1"):
        x.__dlpack__(stream=1)


def test_an_error_of_the_consumer_is_not_lost() -> None:
    x = realized([1.0], dtypes.bfloat16)

    with pytest.raises((BufferError, RuntimeError), match="dtype"):
        numpy.from_dlpack(x)
