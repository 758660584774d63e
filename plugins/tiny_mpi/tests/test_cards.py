"""Groups by NCCL and RCCL, on a library without cards that checks what it is asked."""

from __future__ import annotations

import ctypes
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
from processes import UNNOTICED, finished, output

from tiny_mpi.calls import Call
from tiny_mpi.cards import CardGroup
from tiny_mpi.conformance import CHECKS, MISTAKES
from tiny_mpi.nccl import Library
from tiny_mpi.threads import ThreadGroup, on_threads
from tinycore.errors import GroupError, OutOfMemory

SOURCE = Path(__file__).parent / "collectives" / "standin.c"
NV_TESTS = Path(__file__).parents[2] / "tiny_nv" / "tests"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the stand-in, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    path = tmp_path_factory.mktemp("standin") / "librccl.so.1"
    options = ["-O1", "-shared", "-fPIC", "-pthread", "-o", str(path)]
    subprocess.run([compiler, *options, str(SOURCE)], check=True)
    return str(path)


@pytest.fixture
def library(built: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The stand-in, with a folder in which ranks meet."""
    monkeypatch.setenv("STANDIN_FOLDER", str(tmp_path))
    return built


def on_hip(library: str) -> Callable[[ThreadGroup], CardGroup]:
    """A group of RCCL for each thread, with the card of its rank."""
    rccl = pytest.importorskip("tiny_amd.rccl")
    opened, hip = Library(library), rccl.Hip(library)
    return lambda control: CardGroup(control, opened, rccl.RcclCard(hip, control.rank))


@pytest.mark.sample(4)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_rccl_conforms_on_threads(name: str, size: int, library: str) -> None:
    made = on_hip(library)

    on_threads(size, lambda control: CHECKS[name](made(control)))


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named_before_the_library_is_asked(name: str, library: str) -> None:
    made = on_hip(library)

    with pytest.raises(GroupError) as caught:
        on_threads(2, lambda control: MISTAKES[name].run(made(control)))

    assert all(text in str(caught.value) for text in MISTAKES[name].texts)


@contextmanager
def cards_of_cuda(library: str, count: int) -> Iterator[Any]:
    """The stand-in of CUDA's driver with so many cards, whose memory the library reaches."""
    pytest.importorskip("tiny_nv")
    if not NV_TESTS.is_dir():
        pytest.skip("the stand-in of CUDA's driver is in the tests of tiny_nv")
    sys.path.append(str(NV_TESTS))
    try:
        standin: Any = importlib.import_module("standin")
    finally:
        sys.path.remove(str(NV_TESTS))
    from tiny_nv import _lib  # noqa: PLC0415

    driver = standin.Driver(tuple([standin.Card(f"card {number}") for number in range(count)]))
    functions = ctypes.CDLL(library)

    def place(address: int, size: int) -> int | None:
        try:
            return numpy.frombuffer(driver.span(address, size), numpy.uint8).ctypes.data
        except standin.Mistake:
            return None

    asked = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)(place)
    functions.standin_translate(asked)
    try:
        with _lib.use(driver):
            yield driver
    finally:
        functions.standin_translate(None)


@pytest.mark.sample(4)
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", CHECKS)
def test_nccl_conforms_on_threads(name: str, size: int, library: str) -> None:
    with cards_of_cuda(library, size):
        nccl = pytest.importorskip("tiny_nv.nccl")
        opened = Library(library)

        on_threads(size, lambda own: CHECKS[name](CardGroup(own, opened, nccl.NcclCard(own.rank))))


def test_memory_of_cards_is_passed_where_it_lies(library: str) -> None:
    nccl = pytest.importorskip("tiny_nv.nccl")

    def passed(control: ThreadGroup) -> list[int]:
        card = nccl.NcclCard(control.rank)
        group = CardGroup(control, opened, card)
        direct = group.direct(card.device)
        assert direct is not None
        memory = card.alloc(64)
        card.write(memory, memoryview(bytearray([control.rank + 1] * 64)))
        if control.rank == 0:
            direct.send(memory + 8, 16, 1)
        else:
            direct.receive(memory + 32, 16, 0)
        direct.settle()
        content = bytearray(64)
        card.read(memoryview(content), memory)
        assert group.sent_bytes[1] == (16 if control.rank == 0 else 0)
        return [*content]

    with cards_of_cuda(library, 2):
        opened = Library(library)
        assert on_threads(2, passed) == [[1] * 64, [2] * 32 + [1] * 16 + [2] * 16]


def test_memory_of_another_size_is_an_error(library: str) -> None:
    made = on_hip(library)

    def passed(control: ThreadGroup) -> None:
        group = made(control)
        memory = group.card.alloc(64)
        if control.rank == 0:
            control.send(numpy.array(16), 1)
        else:
            group.receive_memory(memory, group.card.stream, 32, 0)

    with pytest.raises(GroupError, match="rank 1 expects 32 bytes from rank 0, which sends 16"):
        on_threads(2, passed)


def test_what_the_library_reports_is_raised(
    library: str, capfd: pytest.CaptureFixture[str]
) -> None:
    rccl = pytest.importorskip("tiny_amd.rccl")
    opened, hip = Library(library), rccl.Hip(library)

    with pytest.raises(GroupError, match=r"ncclCommInitRank returned invalid usage \(5\)"):
        on_threads(2, lambda own: CardGroup(own, opened, rccl.RcclCard(hip, 0)))
    assert "two ranks have one card" in capfd.readouterr().err


def test_an_error_on_the_way_is_raised(library: str) -> None:
    made = on_hip(library)

    def differing(control: ThreadGroup) -> None:
        group = made(control)
        card = group.card
        source, target = card.alloc(64), card.alloc(64)
        count = 4 + control.rank  # as no agreed call would
        opened.call("ncclAllReduce", source, target, count, 7, 0, group.comm, card.stream)
        group.settle(lambda: False)

    opened = Library(library)
    with pytest.raises(GroupError, match="a collective returned invalid usage"):
        on_threads(2, differing)


@pytest.mark.parametrize(
    ("count", "kind", "text"),
    [(17, 7, "memory beyond an allocation"), (1, 10, "no such type")],
)
def test_the_stand_in_checks_arguments(
    count: int, kind: int, text: str, library: str, capfd: pytest.CaptureFixture[str]
) -> None:
    group = on_threads(1, on_hip(library))[0]
    card = group.card
    card.enter()
    memory = card.alloc(64)

    with pytest.raises(GroupError, match="ncclAllReduce returned invalid argument"):
        group.library.call("ncclAllReduce", memory, memory, count, kind, 0, group.comm, card.stream)
    assert text in capfd.readouterr().err


def test_a_group_that_is_given_up_is_of_no_use(library: str) -> None:
    group = on_threads(1, on_hip(library))[0]
    group.library.abort(group.comm)

    assert group.comm.value is None  # NCCL frees it: nobody may ask it again
    with pytest.raises(GroupError, match="invalid argument"):
        group.all_reduce(numpy.ones(3))
    with pytest.raises(GroupError, match="invalid argument"):
        group.wait(lambda: False, Call("a second time"))


def test_memory_that_a_card_has_not_is_said(library: str) -> None:
    card = on_threads(1, on_hip(library))[0].card

    with pytest.raises(OutOfMemory, match="hipMalloc returned status 2"):
        card.alloc(1 << 40)


def test_an_old_or_missing_library_is_refused(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GroupError, match=r"no_library\.so is no library of collectives"):
        Library("no_library.so")
    with pytest.raises(GroupError, match=r"libc\.so\.6 is no library of collectives"):
        Library("libc.so.6")
    monkeypatch.setenv("STANDIN_VERSION", "2604")
    with pytest.raises(GroupError, match=r"2\.7 or later is needed"):
        Library(library)


PROGRAM = """
import sys
from tiny_mpi.conformance import CHECKS, MISTAKES
from tinycore.groups import group
found = getattr(getattr(group(), "library", None), "functions", None)
print(f"{type(group()).__name__} {found}")  # in one piece: three processes print at once
for check in CHECKS.values():
    check(group())
if len(sys.argv) > 1:
    MISTAKES[sys.argv[1]].run(group())
print("passed")
"""


def variables(library: str, tmp_path: Path) -> dict[str, str]:
    """Settings by which processes find the stand-in."""
    named = {"HIP_LIBRARY": library, "RCCL_LIBRARY": library, "RANK_DEVICE": "AMD"}
    return {**named, "STANDIN_FOLDER": str(tmp_path)}


@pytest.mark.slow
def test_processes_find_the_library_and_conform(library: str, tmp_path: Path) -> None:
    pytest.importorskip("tiny_amd")
    told = output(3, PROGRAM, **variables(library, tmp_path))

    assert told.count("passed") == told.count("CardGroup <CDLL") == 3
    assert output(2, PROGRAM, **variables(library, tmp_path), MPI_CARDS="0").count("MpiGroup") == 2
    few = variables(library, tmp_path) | {"STANDIN_CARDS": "1"}  # each needs one of its own
    assert output(2, PROGRAM, **few).count("MpiGroup") == 2


@pytest.mark.slow
def test_mistakes_of_processes_name_both_sides(library: str, tmp_path: Path) -> None:
    pytest.importorskip("tiny_amd")
    settings = variables(library, tmp_path)

    result = finished(2, PROGRAM, "shape", variables=settings)

    assert result.returncode != 0
    errors = re.findall(r"^\S*GroupError: .*", result.stderr, re.MULTILINE)
    assert len(errors) == 2
    assert all(text in error for error in errors for text in MISTAKES["shape"].texts)


KILLED = """
import os, signal, time
import numpy
from tinycore.groups import group
own = group()
own.all_reduce(numpy.ones(3))
if own.rank == 1:
    own.control.begin("all_reduce", numpy.ones(5), "sum")  # and dies before its card is asked
    os.kill(os.getpid(), signal.SIGKILL)
own.all_reduce(numpy.ones(5))
"""


@pytest.mark.slow
def test_a_killed_process_ends_a_collective_that_waits_for_it(library: str, tmp_path: Path) -> None:
    pytest.importorskip("tiny_amd")
    settings = variables(library, tmp_path)

    result = finished(2, KILLED, within=UNNOTICED, seconds=60, variables=settings)

    assert result.returncode != 0
    assert re.search(
        r"GroupError: rank 1 \(process \d+ on .*\) has died.*in all_reduce", result.stderr
    )


ON_CUDA = """
import ctypes, json, sys
sys.path += sys.argv[1:]
import numpy
from simulated import Simulated, backend_of
from standin import Card
from tiny_nv import _lib
from tiny_nv.settings import cuda_settings
from tinycore.plugin import register

driver = Simulated((Card(), Card()))

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
def place(address, size):
    return numpy.frombuffer(driver.span(address, size), numpy.uint8).ctypes.data

ctypes.CDLL(cuda_settings.NCCL_LIBRARY).standin_translate(place)
register(backend_of(driver))
with _lib.use(driver):
    import tiny_mpi
    from tinycore import Tensor, TinyJit, nn
    from tinycore.groups import group
    ranks = tiny_mpi.ranks()
    Tensor.manual_seed(0)
    layer = nn.Linear(4, 4)
    parameters = nn.state.get_parameters(layer)
    for parameter in parameters:
        parameter.shard_(ranks).realize()
    optimizer = nn.optim.SGD(parameters, lr=0.1)

    @TinyJit
    def step(x):
        optimizer.zero_grad()
        loss = (layer(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.realize()

    losses = []
    with Tensor.train():
        for seed in range(4):
            x = numpy.random.default_rng(seed).random((4, 4)).astype(numpy.float32)
            losses.append(step(Tensor(x).shard(ranks, axis=0).realize()).item())
    told = type(group()).__name__, losses, sum(getattr(group(), "sent_bytes", {}).values())
    all_told = group().all_gather(numpy.array([losses[-1]]))
    assert (all_told == losses[-1]).all()
    if group().rank == 0:
        print(json.dumps(told))
"""


@pytest.mark.slow
def test_cards_of_cuda_train_without_the_host(library: str, tmp_path: Path) -> None:
    pytest.importorskip("tiny_nv")
    if not NV_TESTS.is_dir():
        pytest.skip("the stand-in of CUDA's driver is in the tests of tiny_nv")
    paths = str(NV_TESTS), str(NV_TESTS.parents[2] / "tests" / "support")
    settings = {"NCCL_LIBRARY": library, "STANDIN_FOLDER": str(tmp_path), "RANK_DEVICE": "CUDA:PTX"}

    def trained(count: int, **others: str) -> tuple[str, list[float], int]:
        result = finished(count, ON_CUDA, *paths, variables=settings | others)
        assert result.returncode == 0, result.stderr
        kind, losses, sent = json.loads(result.stdout)
        return kind, losses, sent

    one, two, by_host = trained(1), trained(2), trained(2, MPI_CARDS="0")

    assert (one[0], two[0], by_host[0]) == ("ThreadGroup", "CardGroup", "MpiGroup")
    numpy.testing.assert_allclose(two[1], one[1], rtol=1e-6)
    assert two[1] == by_host[1]
    assert two[2] == by_host[2] > 0
