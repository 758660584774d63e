"""Faults put into the driver and the renderer, one at a time: tests must find each.

A fault is a text of the plugin's source and what stands there instead. The plugin is copied with
it, and the named tests run on the copy in a process of their own; they fail, or this does. A sample;
all by `SEEDED=all pytest -m slow test_seeded.py`, as those of other drivers by their own programs.
"""

# ruff: noqa: E501  what is looked for stands in one piece

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest

HERE: Final = Path(__file__).parent
SOURCE: Final = HERE.parent / "src/tiny_metal"
DRIVER: Final = ("test_driver.py",)
GRAPH: Final = ("test_graph.py",)
EXCHANGE: Final = ("test_exchange.py",)
MESSAGES: Final = ("test_messages.py",)
COPIER: Final = ("test_copier.py",)
TENSORS: Final = ("test_tensors.py", "-k", "M1 or OLD")
REFUSALS: Final = ("test_tensors.py", "-k", "refused and M1")
BITS: Final = ("test_tensors.py", "-k", "bits and M1")
VARIABLES: Final = ("test_tensors.py", "-k", "variable and M1")
PRODUCTS: Final = ("test_matrix.py", "-k", "(numpy or lanes or units or language) and not bfloat16")

WAIT_SECONDS: Final = "5"
"""Time that the mock waits for what a fault keeps from happening."""
FAILED: Final = 1
"""Exit status of pytest where a test failed."""

EVERY: Final = 4
"""One fault in so many is tried; SEEDED=all tries all, as before a release or of a new driver."""

LEAST: Final = 30
"""Number of faults that the driver's and the renderer's tests have to find."""

FAULTS: Final = {
    # memory
    "a write does not wait": (
        *("memory.py", "            self._device.synchronize()\n            ffi.memmove(dst.host"),
        *("            ffi.memmove(dst.host", DRIVER),
    ),
    "a read does not wait": (
        *("memory.py", "            self._device.synchronize()\n            ffi.memmove(dst, src"),
        *("            ffi.memmove(dst, src", DRIVER),
    ),
    "a view of a view forgets where the first starts": (
        *("memory.py", "MetalMemory(handle.buffer, handle.start + start,"),
        *("MetalMemory(handle.buffer, start,", DRIVER),
    ),
    "nil is taken for memory": ("memory.py", "if made == NIL:", "if False:", DRIVER),
    "private memory is written at its start": (
        *("memory.py", "dst.buffer, dst.start + start, size)", "dst.buffer, start, size)", DRIVER),
    ),
    "private memory is read at its start": (
        *("memory.py", "src.buffer, src.start + start, staging", "src.buffer, start, staging"),
        DRIVER,
    ),
    "a shared buffer for copies is kept": (
        *("memory.py", "self._device.release(staging)  #", "pass  #", DRIVER),
    ),
    "memory of a discrete GPU is asked for as shared": (
        *("memory.py", "_SHARED if self._shares else _PRIVATE", "_SHARED", DRIVER),
    ),
    "a buffer of somebody else may be too short": (
        *("memory.py", "< size:\n            raise DeviceError(f\"the MTLBuffer"),
        *("< 0:\n            raise DeviceError(f\"the MTLBuffer", DRIVER),
    ),
    # programs
    "mathematics is fast": ("program.py", "_SAFE_MATH: Final = 0", "_SAFE_MATH: Final = 2", DRIVER),
    "older systems compute fast": (
        *("program.py", '"setFastMathEnabled:", 0', '"setFastMathEnabled:", 1', DRIVER),
    ),
    "warnings are errors": (
        *("program.py", "if library == NIL:", "if error[0] != NIL:", DRIVER),
    ),
    "a library is kept": (
        *("program.py", '            device.send(library, "release")\n', "", DRIVER),
    ),
    "a function is kept": (
        *("program.py", '            device.send(function, "release")\n', "", DRIVER),
    ),
    "a descriptor is kept": (
        *("program.py", '            device.send(described, "release")\n', "", DRIVER),
    ),
    "a pipeline is kept": ("program.py", "device.keep(self, self.pipeline)", "pass", DRIVER),
    "values go to the next slot": (
        *("program.py", "len(packed), len(buffers))", "len(packed), len(buffers) + 1)", DRIVER),
    ),
    "views start where their memory does": (
        *("program.py", "memory.buffer, memory.start, slot)", "memory.buffer, 0, slot)", DRIVER),
    ),
    "too many threads are not looked for": ("program.py", "if x * y * z > most:", "if False:", DRIVER),
    # the device
    "a command buffer is not held": (
        *("device.py", '            self.send(commands, "retain")\n', "", DRIVER),
    ),
    "there is no pool around a launch": (
        *("device.py", "with self.lock, Pool(self.metal):\n            commands", "with self.lock:\n            commands"),
        DRIVER,
    ),
    "a command buffer that ended is kept": (
        *("device.py", '        self.send(work.commands, "release")\n\n    def', "\n    def", DRIVER),
    ),
    "failures are not seen": ("device.py", "_FAILED: Final = 5", "_FAILED: Final = 6", DRIVER),
    "a lack of memory is any failure": (
        *("device.py", "_OUT_OF_MEMORY: Final = 8", "_OUT_OF_MEMORY: Final = 9", DRIVER),
    ),
    "a failure is raised for ever": (
        *("device.py", "failure, self._failure = self._failure, None", "failure = self._failure"),
        DRIVER,
    ),
    "an encoder is left open by an error": (
        *("device.py", "        finally:\n            self.send(made", "        except ZeroDivisionError:\n            pass\n        else:\n            self.send(made"),
        DRIVER,
    ),
    "time runs backwards": ("device.py", "return ended - began", "return began - ended", DRIVER),
    "the queue is kept": ("device.py", "        self.release(self.queue)\n", "", DRIVER),
    "the language is the oldest": (
        *("device.py", "for version in LANGUAGES:", "for version in LANGUAGES[::-1]:", DRIVER),
    ),
    "a GPU is taken for its oldest family": (
        *("probe.py", "family=families[0]", "family=families[-1]", DRIVER + GRAPH),
    ),
    "GPUs that were listed are kept": (
        *("probe.py", '                runtime.send(device, "release")\n', "                pass\n", DRIVER),
    ),
    "a message is sent with another type": (
        *("_messages.py", '"GPUStartTime": ("double",)', '"GPUStartTime": ("uint64_t",)'),
        MESSAGES,
    ),
    # graphs
    "launches of a graph are not ordered": (
        *("graph.py", '                send(command, "setBarrier")\n', "", GRAPH),
    ),
    "buffers are not resident": (
        *("graph.py", '                    send(encoder, "useResources:count:usage:", *used)\n'),
        *("                    pass\n", GRAPH),
    ),
    "pipelines are not set first": (
        *("graph.py", 'frozenset({"apple7", "apple8"})', "frozenset()", GRAPH),
    ),
    "changes do not wait for the run before": (
        *("graph.py", "        self._device.wait_until_ended(self._last_run)\n", "", GRAPH),
    ),
    "new buffers are not resident": (
        *("graph.py", "            self._resources = self._resident()\n        self._changed.clear()"),
        *("            pass\n        self._changed.clear()", GRAPH),
    ),
    "values of all launches start at the first": (
        *("graph.py", "step.values_start = size", "step.values_start = 0", GRAPH),
    ),
    "new values are not put in": (
        *("graph.py", "                self._write_values(step)\n", "                pass\n"),
        GRAPH,
    ),
    "a graph that is dropped takes its run along": (
        *("graph.py", "wait, kept=self)", "wait)", GRAPH),
    ),
    # copies between GPUs
    "a copy does not wait for the other GPU": (
        *("copier.py", '            device.send(commands, "encodeWaitForEvent:value:", *after)\n'),
        *("            pass\n", COPIER),
    ),
    "nobody signals in the place of who failed": (
        *("device.py", 'self.send(work.signal[0], "setSignaledValue:", work.signal[1])', "pass"),
        COPIER,
    ),
    "results that there are not are used": (
        *("device.py", "return not is_input or (", "return True or (", COPIER),
    ),
    "pieces begin where their memory does": (
        *("copier.py", "memory.start + start, None)", "memory.start, None)", COPIER),
    ),
    "pages are filled before they are empty": (
        *("copier.py", "(half.is_empty, turn) if turn else None", "None", COPIER),
    ),
    "a graph forgets the copies of which launches are": (
        *("graph.py", "            self._hold(launches, between)\n            copy =", "            copy ="),
        COPIER,
    ),
    # memory of other libraries
    "memory is lent from the start of its buffer": (
        *("device.py", "memory.buffer)), memory.start", "memory.buffer)), 0", EXCHANGE),
    ),
    "who takes memory does not wait": (
        *("device.py", '        """Wait for all that was asked, since the queues of other libraries cannot."""\n        self.synchronize()\n'),
        *('        """Wait for nothing."""\n', EXCHANGE),
    ),
    "torch is not waited for": ("device.py", "torch.mps.synchronize()", "pass", EXCHANGE),
    "any address is taken for an object": (
        *("memory.py", "if pointer % _OBJECT_ALIGNMENT:", "if False:", EXCHANGE),
    ),
    # the renderer
    "barriers order no shared memory": (
        *("render.py", "mem_flags::mem_threadgroup", "mem_flags::mem_none", TENSORS),
    ),
    "groups and threads are mistaken": (
        *("render.py", '{"grid": "group.{xyz}", "block": "thread_.{xyz}"}'),
        *('{"grid": "thread_.{xyz}", "block": "group.{xyz}"}', TENSORS),
    ),
    "lanes are the first": (
        *("render.py", "writer[vector], lane % vector.dtype.count", "writer[vector], 0", TENSORS),
    ),
    "lanes beyond four are the first four": (
        *("render.py", "part[{place // MOST_LANES}]", "part[0]", TENSORS),
    ),
    "lanes are reversed": (
        *("render.py", "typed_lanes(self, u, writer)", "typed_lanes(self, u, writer)[::-1]", TENSORS),
    ),
    "what C leaves undefined is not guarded": (
        *("render.py", '    function: ClassVar[str] = "inline'),
        *('    defined: ClassVar[frozenset[Op]] = frozenset(Op)\n    function: ClassVar[str] = "inline', TENSORS),
    ),
    "bits are taken of what was promoted": (
        *("render.py", 'text = f"({writer.type(source)}){writer[u.src[0]]}"'),
        *('text = writer[u.src[0]]; source', BITS),
    ),
    "variables have their neighbor's value": (
        *("render.py", "= values[{place}];", "= values[{place + 1}];", VARIABLES),
    ),
    "vectors may lie anywhere": (
        *("arch.py", "access_alignment=VECTOR_BYTES", "access_alignment=1", TENSORS),
    ),
    "lanes hold other rows of what is multiplied": (
        *("matrix.py", '"k2 m1 m2 k4 m4 | k1"', '"k2 m1 m2 m4 k4 | k1"', PRODUCTS),
    ),
    "a sum forgets what it is added to": (
        *("matrix.py", "z.thread_elements()[0] = c.x;", "z.thread_elements()[0] = 0;", PRODUCTS),
    ),
    "the second operand is passed first": (
        *("matrix.py", "accumulate(z, x, y, z)", "accumulate(z, y, x, z)", PRODUCTS),
    ),
    "an older language is given matrices": (
        *("arch.py", "self.language < FIRST_WITH_MATRICES", "False", PRODUCTS),
    ),
    "matrices of bfloat are of every language": (
        *("arch.py", "or self.has_bfloat)", "or True)", PRODUCTS),
    ),
    "older languages have bfloat": (
        *("arch.py", "return self.facts.has_bfloat and self.language >= NEWEST", "return True"),
        TENSORS,
    ),
    "bytes are signed": ("render.py", 'dtypes.uint8: "uchar"', 'dtypes.uint8: "char"', TENSORS),
    "float64 is not refused": (
        *("render.py", "frozenset({dtypes.float64})", "frozenset()", REFUSALS),
    ),
}  # fmt: skip
"""By what is wrong: the file, what is there, what is put there, and the tests that find it."""


def is_tried(name: str) -> bool:
    """True if a fault is of the sample, or all are asked for: each starts a process."""
    return os.environ.get("SEEDED") == "all" or crc32(name.encode()) % EVERY == 0


def test_there_are_as_many_faults_as_the_docs_say() -> None:
    page = (HERE.parents[2] / "docs/hardware.md").read_text("utf-8")
    section = page.partition("\n## METAL\n")[2].partition("\n## ")[0]

    assert f"| faults | {len(FAULTS)} faults are seeded into the driver and the renderer" in section
    assert len(FAULTS) >= LEAST


def test_every_fault_can_be_put_into_its_file() -> None:
    texts = {file: (SOURCE / file).read_text("utf-8") for file, *_ in FAULTS.values()}

    changed = [name for name, (file, before, *_) in FAULTS.items() if before not in texts[file]]
    assert not changed, "their files have changed: state them anew"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAULTS if is_tried(name)])
def test_a_fault_is_found(mock: None, tmp_path: Path, name: str) -> None:
    file, before, after, tests = FAULTS[name]
    copied = tmp_path / "tiny_metal"
    shutil.copytree(SOURCE, copied, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copied / file).read_text("utf-8")
    (copied / file).write_text(text.replace(before, after))
    files = [str(HERE / word) if word.endswith(".py") else word for word in tests]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *files],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "MOCK_METAL_WAIT_SECONDS": WAIT_SECONDS},
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    found = done.returncode == FAILED or done.returncode < 0  # a crash is found too
    assert found, f"no test finds it, or none runs: {done.stdout}{done.stderr}"
