"""Drivers of each peer: make tensors, make a program callable, wait for it, read its result."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy

from benchmarks.case import Case, Kind, Prepared

__all__ = [
    "OURS",
    "PEERS",
    "JaxPeer",
    "Peer",
    "TinyPeer",
    "TorchPeer",
    "environment_of",
    "why_absent",
]

Array = numpy.ndarray[Any, numpy.dtype[Any]]
Step = Callable[[], Any]

OURS: Final = ("tinycore", "tinycore-jit")


class Peer:
    """NumPy, and what the others change."""

    module_name = "numpy"

    def __init__(self) -> None:
        self.module = importlib.import_module(self.module_name)

    def tensor(self, array: Array, dtype: str) -> Any:
        """A tensor of this peer. The array is not used again."""
        if dtype != str(array.dtype):
            raise NotImplementedError(f"{self.module_name} has no {dtype}")
        return array

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function in the form in which this peer runs it fastest; the result is computed."""
        return function

    def finished(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step that changes what it closes over, in the form in which this peer runs it."""
        return self.compiled(step)

    def array(self, result: Any) -> Array:
        """The result, in a dtype that NumPy has."""
        return numpy.asarray(result)

    def about(self) -> str:
        """More than the version, where there is more to say."""
        return ""

    def step(self, case: Case, inputs: Sequence[Any]) -> Step | Prepared:
        """Function called again and again."""
        program = case.program_of(self.module_name)
        if program is None:
            raise NotImplementedError(f"{self.module_name} cannot do {case.name}")
        if case.kind is Kind.CALL:
            run = self.compiled(lambda *tensors: program(self.module, *tensors))
            return lambda: run(*inputs)
        step: Step | Prepared = program(self.module, *inputs)
        if case.kind is Kind.TOOL:
            return step
        if isinstance(step, Prepared):
            return Prepared(step.prepare, self.finished(step.run))
        return self.finished(step)


class TorchPeer(Peer):
    """PyTorch, eager, on the CPU."""

    module_name = "torch"

    def __init__(self) -> None:
        super().__init__()
        self.module.set_num_threads(processors())

    def tensor(self, array: Array, dtype: str) -> Any:
        made = self.module.from_numpy(array)
        return made.long() if dtype == "int32" else made.to(getattr(self.module, dtype))

    def array(self, result: Any) -> Array:
        result = result.detach()
        wide = result.float() if result.dtype == self.module.bfloat16 else result
        return numpy.asarray(wide.numpy())


class JaxPeer(Peer):
    """JAX on the CPU, each program under `jax.jit`. A step has compiled what it repeats itself."""

    module_name = "jax"

    def tensor(self, array: Array, dtype: str) -> Any:
        return self.module.numpy.asarray(array, dtype)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.finished(self.module.jit(function))

    def finished(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: step(*given).block_until_ready()

    def array(self, result: Any) -> Array:
        return numpy.asarray(result.astype("float32") if result.dtype == "bfloat16" else result)


class TinyPeer(Peer):
    """tinygrad, or tinycore: they have one interface. With `jit`, programs are captured."""

    def __init__(self, module_name: str, *, jit: bool) -> None:
        self.module_name = module_name
        self.jit = jit
        super().__init__()
        self.device = self.module.Device[self.module.Device.DEFAULT]

    def tensor(self, array: Array, dtype: str) -> Any:
        return self.module.Tensor(array).cast(getattr(self.module.dtypes, dtype)).realize()

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def realized(*tensors: Any) -> Any:
            return function(*tensors).realize()

        run = self.module.TinyJit(realized) if self.jit else realized

        def finished(*tensors: Any) -> Any:
            result = run(*tensors)
            self.device.synchronize()
            return result

        return finished

    def array(self, result: Any) -> Array:
        if isinstance(result, int):
            return numpy.asarray(result)
        floats = result.dtype in {self.module.dtypes.bfloat16, self.module.dtypes.float16}
        return numpy.asarray((result.float() if floats else result).numpy())

    def about(self) -> str:
        if self.module_name != "tinycore":
            return ""
        toolchain = self.device.toolchain
        version = toolchain.compiler.key.partition(" -")[0] if toolchain else ""
        return f"{self.device.name}, {version}"


PEERS: Final[Mapping[str, Callable[[], Peer]]] = {
    "tinycore": lambda: TinyPeer("tinycore", jit=False),
    "tinycore-jit": lambda: TinyPeer("tinycore", jit=True),
    "torch": TorchPeer,
    "jax": JaxPeer,
    "tinygrad": lambda: TinyPeer("tinygrad", jit=True),
    "tinygrad-plain": lambda: TinyPeer("tinygrad", jit=False),
    "numpy": Peer,
}
"""Every peer there is. tinygrad is measured at its best, which is with its JIT."""


def package_of(peer: str) -> str:
    """The package that must be installed for a peer."""
    return peer.partition("-")[0]


def why_absent(peer: str) -> str:
    """Why a peer cannot be measured here; empty when it can."""
    package = package_of(peer)
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    if package == "tinygrad" and not find_clang():
        return "tinygrad computes on the CPU with clang, and there is none"
    return ""


def version_of(peer: str) -> str:
    """The peer's version."""
    return importlib.metadata.version(package_of(peer))


def environment_of(peer: str, caches: Path) -> dict[str, str]:
    """The environment of a peer's process: all processors, and caches of this run only."""
    count = str(processors())
    own = dict(os.environ) | dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), count
    )
    own["XDG_CACHE_HOME"] = str(caches)
    own.pop("PYTHONDONTWRITEBYTECODE", None)  # else some imports would be of sources, others not
    if package_of(peer) == "tinygrad":
        own |= {"DEV": "CPU", "CC": find_clang(), "CACHEDB": str(caches / "tinygrad.db")}
    return own | ({"CACHE_DIR": str(caches)} if peer in OURS else {})


def find_clang() -> str:
    """The clang that tinygrad is given: what CC says, if that is a clang, else one on PATH."""
    chosen = os.environ.get("CC", "")
    names = (
        chosen if "clang" in Path(chosen).name else "clang",
        *(f"clang-{version}" for version in range(23, 14, -1)),
    )
    return next((path for path in map(shutil.which, names) if path), "")


def processors() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
