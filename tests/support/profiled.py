"""A program that a plugin's tests record on their device, and what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy
import pytest

import tinycore
from tinycore import Device, GlobalCounters, Tensor, TinyJit
from tinycore.config import Context

__all__ = ["profile_is_whole"]

REPLAYS: Final = 5


def profile_is_whole(
    device: str, folder: Path, patch: pytest.MonkeyPatch, *, assembly: bool | None = None
) -> None:
    """Record kernels, replays and copies on a device; each is told, with the source that its
    compiler got, and with its memory.

    With `assembly`, its compiler shows machine code, or shows none.
    """
    limits = pytest.importorskip("tiny_viz.limits", reason="pip install tiny-viz")
    patch.setattr(limits, "PATIENCE", 0.0)  # what a stand-in can at most takes minutes to measure
    compiled = compiled_on(device, patch)
    path = folder / "one.tinyviz"
    before = GlobalCounters.kernel_count
    with Context(CCACHE=0, BEAM=0), tinycore.profile(path):
        computed(device)
        launched, sources = GlobalCounters.kernel_count - before, {*compiled}

    told = Told(path)
    kernels = [k for k in told.summary["kernels"] if k["queue"] == "kernels"]
    assert {k["device"] for k in kernels} == {device}
    assert sum(k["launches"] for k in told.summary["kernels"]) == launched
    assert told.summary["failures"] == 0
    places = {Path(file).name for k in kernels for _, file, _ in k["origins"]}
    assert places == {Path(__file__).name}
    whole = told.summary["nanoseconds"]
    for lane in told.lanes(whole):
        if lane["name"].startswith("Python"):  # spans of samples, about as long as between two
            continue
        outside = [s for s in lane["spans"] if not 0 <= s[0] <= s[0] + s[1] <= whole]
        assert not outside, f"{lane['name']}: {outside} of {whole}"
    assert {told.ask("kernel", id=k["id"])["source"] for k in kernels} == sources
    told.memory_is_held(device)
    for kernel in kernels:
        told.passes_are_its_own(kernel["id"], assembly)
    told.close()


def compiled_on(device: str, patch: pytest.MonkeyPatch) -> list[str]:
    """A list of the sources that the compiler of a device is given from now on."""
    compiler: Any = Device[device].toolchain.compiler
    compile_, given = type(compiler).compile, list[str]()

    def compile_and_note(self: Any, source: str) -> bytes:
        given.append(source)
        found: bytes = compile_(self, source)
        return found

    patch.setattr(type(compiler), "compile", compile_and_note)
    return given


def computed(device: str) -> None:
    """Compute a product, a softmax and captured steps, from and to the host."""
    a = numpy.random.default_rng(0).standard_normal((9, 13)).astype("f")
    x = Tensor(a, device=device).realize()
    y = (x @ x.T).softmax().realize()
    powers = numpy.exp(a @ a.T - (a @ a.T).max(-1, keepdims=True))
    numpy.testing.assert_allclose(y.numpy(), powers / powers.sum(-1, keepdims=True), 2e-3, 1e-5)
    step = TinyJit(lambda x: (x.relu() * 17.5).sum().realize())
    for number in range(REPLAYS + 2):
        step((x + number).realize())


class Told:
    """Answers to the page of a profile."""

    def __init__(self, path: Path) -> None:
        from tiny_viz.queries import Queries  # noqa: PLC0415  which may not be installed

        self.queries = Queries(path)
        self.summary = self.ask("summary")

    def ask(self, name: str, **values: object) -> Any:
        """The answer to a query."""
        return self.queries.known[name]({key: str(value) for key, value in values.items()})

    def close(self) -> None:
        """Close the file."""
        self.queries.close()

    def lanes(self, whole: int) -> Any:
        """The lanes of the timeline, with kernels among them."""
        lanes = self.ask("timeline", **{"from": 0, "to": whole})["lanes"]
        assert {"replays", "compilation"} <= {lane["name"] for lane in lanes}
        assert sum(len(lane["spans"]) for lane in lanes if lane.get("kernels")) > REPLAYS
        return lanes

    def memory_is_held(self, device: str) -> None:
        """Memory was held on the device, and each launch has memory that is known."""
        assert max(used for _, used in self.ask("memory")[device]) >= 9 * 13 * 4
        graph = self.ask("graph", count=1000)
        memory = [box["label"] for box in graph["boxes"] if box["kind"] == "memory"]
        assert memory
        assert not [label for label in memory if label.startswith("0 B")]

    def passes_are_its_own(self, kernel: int, assembly: bool | None) -> None:
        """A kernel that is lowered again has the source that ran."""
        from tiny_viz.passes import lowered  # noqa: PLC0415  which may not be installed

        found = self.ask("kernel", id=kernel)
        made = lowered(found["graph"], found["device"])  # a stand-in is in this process alone
        assert "error" not in made
        assert made["source"] == found["source"]
        assert assembly is None or bool(made["assembly"]) is assembly
