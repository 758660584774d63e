"""Schedules kept on disk: a later process cuts no graph that an earlier one has cut."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tinycore import Context, Tensor, Variable, cache
from tinycore._lru import Lru
from tinycore.nn.optim import Adam, AdamW
from tinycore.schedule import compiled, disk
from tinycore.schedule.canonical import canonicalize
from tinycore.tensor.storage.realization import choose_retention

DEVICE = "PYTHON"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with Context(CACHE_DIR=str(tmp_path), VERIFY=0):
        yield tmp_path


@pytest.fixture(autouse=True)
def always_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every schedule is looked for in this test's folder: none is known from tests before it."""
    monkeypatch.setattr(disk, "FEWEST_NODES", 1)
    monkeypatch.setattr(compiled, "schedules", Lru(1024))


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be as a new process is: schedules are found on disk, or not at all."""

    def cut(*_: object) -> NoReturn:
        raise AssertionError("a graph was cut anew")

    monkeypatch.setattr(compiled, "schedules", Lru(1024))
    monkeypatch.setattr(compiled, "compile_schedule", cut)


def softmaxes(device: str = DEVICE) -> Tensor:
    x = Tensor([[1.0, 2.0], [4.0, 3.0]], device=device).realize()
    first = (x @ x.T).softmax(1).contiguous()
    return (first + x).relu().sum(0) + first.max()


def test_what_was_cut_is_not_cut_again(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = softmaxes().tolist()
    forget(monkeypatch)

    assert softmaxes().tolist() == expected


def test_what_was_not_cut_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    softmaxes().realize()
    forget(monkeypatch)

    with pytest.raises(AssertionError, match="cut anew"):
        (softmaxes() + 1).realize()


def test_a_training_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> list[float]:
        weight = Tensor([[0.5, -1.0], [2.0, 1.0]], device=DEVICE, requires_grad=True).realize()
        optimizer = Adam([weight], lr=0.1)
        with Tensor.train():
            for _ in range(3):
                optimizer.zero_grad()
                (weight @ weight).tanh().sum().backward()
                optimizer.step()
        return list(weight.flatten().tolist())

    expected = steps()
    forget(monkeypatch)

    assert steps() == expected


def test_new_memory_is_not_taken_for_memory_of_its_kind_that_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def both() -> tuple[list[float], list[float]]:
        x = Tensor([1.0, 2.0, 4.0], device=DEVICE).realize()
        tripled = x * 3
        x.assign(x + 1)
        Tensor.realize(x, tripled)
        return x.tolist(), tripled.tolist()

    expected = both()
    forget(monkeypatch)

    assert both() == expected == ([2.0, 3.0, 5.0], [3.0, 6.0, 12.0])


def test_devices_in_a_row_and_sizes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(length: int) -> tuple[float, float]:
        whole = Tensor.arange(8, device=DEVICE).cast("float32").contiguous().realize()
        shared = whole.shard((DEVICE, f"{DEVICE}:1"), 0)
        part = whole[: Variable("length", 1, 8).bind(length)]
        return float((shared * 2).sum().item()), float((part.sum() * 3).item())

    both(3)
    forget(monkeypatch)

    assert both(5) == (56.0, 30.0)


def losses(mode: str) -> list[float]:
    """Losses of a linear layer over features that are realized, read, viewed, or still a graph."""
    rows = [[0.5, -1.0, 0.25, 2.0], [1.0, 0.5, -0.5, 1.5]]
    x, square = Tensor(rows, device=DEVICE).realize(), Tensor(rows * 2, device=DEVICE).realize()
    weight = Tensor([row[:3] for row in rows * 2], device=DEVICE, requires_grad=True).realize()
    features = (x @ square).gelu().detach()
    if mode == "realize":
        features.realize()
    elif mode == "numpy":
        features.numpy()
    elif mode == "numpy of a part":
        features[0].numpy()
    elif mode == "item":
        features.sum().item()
    optimizer = AdamW([weight], lr=0.1)
    found = []
    with Tensor.train():
        for _ in range(3):
            optimizer.zero_grad()
            logits = features @ weight
            loss = logits.cross_entropy(Tensor([0, 2], device=DEVICE)).backward()
            optimizer.step()
            found.append(loss.item())
    return found


MODES = ("realize", "numpy", "numpy of a part", "item", "kept")


@pytest.mark.sample(4)
@pytest.mark.parametrize("second", MODES)
@pytest.mark.parametrize("first", MODES[:2])
def test_a_value_in_the_value_cache_does_not_move_results(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cached value is a second name of its memory, but no node of the canonical graph."""
    with Context(CCACHE=0):
        expected = losses(second)
    monkeypatch.setattr(compiled, "schedules", Lru(1024))
    losses(first)
    monkeypatch.setattr(compiled, "schedules", Lru(1024))

    assert losses(second) == expected


@pytest.mark.sample(4)
@pytest.mark.parametrize("second", MODES)
def test_an_evicted_schedule_is_found_again_as_it_was(
    second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Context(CCACHE=0):
        expected = losses(second)
    monkeypatch.setattr(compiled, "schedules", Lru(1))

    for first in MODES:
        losses(first)
        assert losses(second) == expected


GRAPH = b"\n%0 = CONST int32 [1]\n%1 = SINK void (%0)\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"{}\n",
        b'{"places": [], "memory": 0, "results": []}\n',
        b'{"places": [[0]], "memory": 0, "results": []}' + GRAPH,
        b'{"places": [], "memory": 0, "results": [9999]}' + GRAPH,
    ],
)
def test_a_wrong_entry_is_not_used(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = softmaxes().tolist()
    monkeypatch.setattr(compiled, "schedules", Lru(1024))
    monkeypatch.setattr(
        cache, "get", lambda table, key: content if table == disk.SCHEDULES else None
    )

    assert softmaxes().tolist() == expected


def test_the_key_tells_apart_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    form = canonicalize([softmaxes().uop])
    plain = disk.schedule_key(form, choose_retention)

    assert plain == disk.schedule_key(canonicalize([softmaxes().uop]), choose_retention)
    with Context(NOOPT=1):
        assert disk.schedule_key(form, choose_retention) != plain
    with Context(RING=0):
        assert disk.schedule_key(form, choose_retention) != plain
    assert disk.schedule_key(form, forget) != plain
    with Context(CCACHE=0):
        assert disk.schedule_key(form, choose_retention) is None
    with Context(VERIFY=1):
        assert disk.schedule_key(form, choose_retention) is None
    monkeypatch.setattr(disk, "stamp", lambda above: "other code")
    assert disk.schedule_key(form, choose_retention) != plain


def test_small_graphs_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "FEWEST_NODES", 1000)

    assert disk.schedule_key(canonicalize([softmaxes().uop]), choose_retention) is None


SECOND = """
import sys
from tinycore import Tensor
x = Tensor([[1.0, 2.0], [4.0, 3.0]], device="PYTHON")
for number in range(12):
    x = (x @ x).softmax(1).contiguous() + number
print(x.tolist())
"""


@pytest.mark.slow
def test_processes_at_once_and_one_after_them_agree(folder: Path) -> None:
    environment = os.environ | {"CACHE_DIR": str(folder), "VERIFY": "0"}
    command = [sys.executable, "-c", SECOND]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    first = [process.communicate(timeout=60)[0] for process in running]
    later = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=60
    )

    assert {*first} == {later.stdout}
    assert list(folder.glob(f"*/{disk.SCHEDULES}-*"))
