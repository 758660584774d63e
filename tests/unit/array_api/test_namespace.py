"""The standard's names: all here or left out with a reason, called as it says, and published."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import array_api_strict as strict
import pytest

import tinycore.array_api as xp
from tests.unit.array_api.cases import CASES
from tests.unit.array_api.comparing import dtype_name
from tests.unit.array_api.conftest import FULL
from tests.unit.array_api.standard import ELEMENTWISE, FUNCTIONS, REVISION
from tests.unit.array_api.table import NAMES, NOTES, PAGE, PART, generated, is_here, reason
from tinycore import Context, Device
from tinycore.array_api._left_out import LEFT_OUT
from tinycore.dtype import dtypes
from tinycore.errors import UnknownDevice

HERE = [name for name in FUNCTIONS if reason(name) is None]


def found(name: str) -> Any:
    """A function of the namespace or of an extension."""
    owner, _, attribute = name.rpartition(".")
    return getattr(getattr(xp, owner) if owner else xp, attribute)


def test_the_revision() -> None:
    assert xp.__array_api_version__ == REVISION
    assert REVISION in (xp.__doc__ or "")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_here_or_left_out(name: str) -> None:
    assert is_here(name) == (reason(name) is None)


def test_the_list_of_names_is_that_of_the_reference() -> None:
    later = {"broadcast_shapes", "isin"}  # of revision 2025.12
    own = {"ArrayAPIStrictFlags", "DType", "Device", "ModuleType", "fft", "linalg"}
    names = {name for name in dir(strict) if not name.startswith("_") and "_flags" not in name}

    assert names - own - later == {name for name in NAMES if "." not in name and "__" not in name}


def test_nothing_else_is_listed() -> None:
    assert set(xp.__all__) - {"__array_api_version__", "linalg"} <= set(NAMES)
    assert len(set(xp.__all__)) == len(xp.__all__)
    assert dir(xp) == sorted(xp.__all__)
    assert {f"linalg.{name}" for name in xp.linalg.__all__} <= set(NAMES)


@pytest.mark.parametrize("name", HERE)
def test_a_function_is_called_as_the_standard_says(name: str) -> None:
    function = found(name)
    assert callable(function)
    signature = inspect.signature(function)
    plain = signature.replace(
        parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
        return_annotation=inspect.Signature.empty,
    )

    assert str(plain) == FUNCTIONS[name]
    assert function.__name__ == name.rpartition(".")[2]
    assert inspect.getdoc(function)


def test_every_function_has_cases() -> None:
    assert CASES.keys() | ELEMENTWISE.keys() - {"imag"} == set(HERE)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_missing_name_says_why(name: str) -> None:
    owner, _, attribute = name.rpartition(".")
    if owner == "array":
        return
    with pytest.raises(AttributeError) as told:
        getattr(getattr(xp, owner) if owner else xp, attribute)

    assert str(told.value).endswith(LEFT_OUT[name])


def test_an_unknown_name_is_only_that() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'sinus'$"):
        _ = xp.sinus


def test_remarks_are_on_names_that_are_here() -> None:
    assert [name for name in NOTES if name not in NAMES or reason(name) is not None] == []


def test_the_published_table_is_up_to_date(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text("utf-8")
    if request.config.getoption("--update-golden"):
        PAGE.write_text(PART.sub(lambda _: generated(), text), "utf-8")
        return
    (table,) = PART.findall(text)

    assert table == generated(), "run `pytest --update-golden` and read the difference"


# Inspection


def test_abilities_and_defaults() -> None:
    info = xp.__array_namespace_info__()

    assert info.capabilities()["data-dependent shapes"] is True
    assert info.default_dtypes() == {
        "real floating": xp.float64,
        "integral": xp.int64,
        "indexing": xp.int64,
    }
    with Context(DEFAULT_FLOAT="float32", DEFAULT_INT="int32"):
        assert info.default_dtypes()["real floating"] is xp.float32
        assert xp.sum(xp.ones(2, dtype=xp.uint8)).dtype is xp.uint32
        assert xp.sum(xp.ones(2, dtype=xp.int64)).dtype is xp.int64
        assert xp.argmax(xp.ones(2)).dtype is xp.int32


def test_devices() -> None:
    info = xp.__array_namespace_info__()

    assert info.default_device() == Device.DEFAULT == FULL.partition(":")[0]
    assert info.default_device() in info.devices()
    assert xp.ones(1, device="PYTHON").device == "PYTHON"


@pytest.mark.parametrize("kind", [None, "bool", "integral", ("real floating", "bool"), "numeric"])
def test_dtypes_by_kind(kind: str | tuple[str, ...] | None) -> None:
    ours = xp.__array_namespace_info__().dtypes(kind=kind)
    theirs = strict.__array_namespace_info__().dtypes(kind=kind)

    assert {n: dtype_name(d) for n, d in ours.items()} == {
        n: dtype_name(d) for n, d in theirs.items() if not n.startswith("complex")
    }
    assert xp.__array_namespace_info__().dtypes(kind="complex floating") == {}
    with pytest.raises(UnknownDevice):
        xp.__array_namespace_info__().dtypes(device="NOWHERE")


def test_dtypes_beyond_the_standard() -> None:
    x = xp.asarray([1.5, -2.5], dtype=dtypes.bfloat16)

    assert xp.isdtype(dtypes.float16, "real floating")
    assert xp.result_type(dtypes.float16, dtypes.bfloat16) is dtypes.float32
    assert xp.finfo(dtypes.bfloat16)[:5] == (
        16,
        2.0**-7,
        3.3895313892515355e38,
        -3.3895313892515355e38,
        2.0**-126,
    )
    assert xp.abs(x).tolist() == [1.5, 2.5]
    assert xp.hypot(x, x).dtype is dtypes.bfloat16
    assert xp.nextafter(x, xp.zeros(2, dtype=dtypes.bfloat16)).tolist() == [1.4921875, -2.484375]


def test_importing_the_namespace_opens_no_device() -> None:
    program = "import tinycore.array_api; from tinycore import Device; assert not Device.opened()"

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
