"""Cost of tiny_cpu beside the kernels themselves: `python benchmarks/launch.py`.

Prints one line per fact: import, start of the pool, launches from Python and from a replay, those
through queues (`DEV=HCQ+CPU`), and the time each compiler takes for a small kernel. Figures of a
busy machine say nothing, but for the best burst through queues, which is of the thread's own time.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from time import perf_counter, thread_time

from tiny_cpu.arch import Arch
from tiny_cpu.clang import ClangCompiler, is_clang_installed
from tiny_cpu.device import open_cpu
from tiny_cpu.llvm import LlvmCompiler
from tiny_cpu.memory import CpuAllocator
from tiny_cpu.pool import pool
from tiny_cpu.program import CpuProgram, Replay
from tiny_cpu.queued import QueuedCpu
from tinycore.plugin import Compiler, ProgramInfo

ADD = """
define void @add(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
  %data = load ptr, ptr %buffers
  br label %head
head:
  %i = phi i64 [ %begin, %0 ], [ %next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %first = mul i64 %i, 16
  %place = getelementptr float, ptr %data, i64 %first
  %old = load <16 x float>, ptr %place, align 4
  %new = fadd <16 x float> %old, %old
  store <16 x float> %new, ptr %place, align 4
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}
"""

ADD_IN_C = """
typedef float lanes __attribute__((ext_vector_type(16), aligned(4)));
void add(void *const *buffers, const long long *values, long long begin, long long end) {
  float *data = buffers[0];
  for (long long i = begin; i < end; i++) *(lanes *)(data + 16 * i) += *(lanes *)(data + 16 * i);
}
"""


def told(fact: str, seconds: float, unit: str = "us") -> None:
    scale = {"us": 1e6, "ms": 1e3}[unit]
    print(f"{fact:<52} {seconds * scale:9.2f} {unit}")


def median(work: Callable[[], object], times: int) -> float:
    samples = []
    for _ in range(times):
        start = perf_counter()
        work()
        samples.append(perf_counter() - start)
    return statistics.median(samples)


def in_a_fresh_process(statement: str, folder: str) -> float:
    """Seconds a statement takes in a new interpreter, with this cache folder."""
    script = f"import time; s = time.perf_counter(); {statement}; print(time.perf_counter() - s)"
    command = [sys.executable, "-c", script]
    environment = os.environ | {"CACHE_DIR": folder}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def report_start() -> None:
    with tempfile.TemporaryDirectory() as folder:
        declare = "import tinycore.plugin; s = time.perf_counter(); import tiny_cpu"
        told("import tiny_cpu, the core being there", in_a_fresh_process(declare, folder), "ms")
        use = "import tinycore.plugin, tinycore.render; s = time.perf_counter(); "
        use += "import tiny_cpu.device"
        told("import tiny_cpu.device, likewise", in_a_fresh_process(use, folder), "ms")
        start = "from tiny_cpu.pool import pool; s = time.perf_counter(); pool()"
        told(
            "start of the pool, compiled for the first time",
            in_a_fresh_process(start, folder),
            "ms",
        )
        told("start of the pool, from the cache", in_a_fresh_process(start, folder), "ms")


def report_compilers() -> None:
    arch = Arch.parse("native")
    compilers: list[tuple[Compiler, str]] = [(LlvmCompiler(arch), ADD)]
    if is_clang_installed():
        compilers.append((ClangCompiler(arch), ADD_IN_C))
    for compiler, source in compilers:
        seconds = median(lambda c=compiler, s=source: c.compile(s), 20)  # type: ignore[misc]
        told(f"compile a small kernel, {compiler.name}", seconds, "ms")


def report_launches() -> None:
    binary = LlvmCompiler(Arch.parse("native")).compile(ADD)
    for rows in (1, 64, 4096):
        data = CpuAllocator().alloc(rows * 64)
        program = CpuProgram(binary, ProgramInfo("add", 1, (), parallel=rows))
        threads = pool().threads if rows > 1 else 1
        name = f"{rows * 16} floats, {threads} thread(s)"
        told(f"launch from Python, {name}", median(lambda p=program, d=data: p([d], []), 3000))  # type: ignore[misc]
        replay = Replay([(program, [data], [])] * 100)
        told(f"launch in a replay of 100, {name}", median(replay, 200) / 100)


def report_queues() -> None:
    """Thread time of launches that the device keeps up with, and of replays of a graph."""
    device = open_cpu(0, "HCQ")
    assert isinstance(device, QueuedCpu)
    binary = LlvmCompiler(Arch.parse("native")).compile(ADD)
    buffers = [device.allocator.alloc(64) for _ in range(3)]
    program = device.load(binary, ProgramInfo("add", 3, ("value0",), written=frozenset({0})))
    graph = device.graph([(program, buffers, [7])] * 100)

    def burst(work: Callable[[], object], times: int) -> float:
        device.synchronize()
        start = thread_time()
        for _ in range(times):
            work()
        return (thread_time() - start) / times

    for name, work, times in (
        ("launch through queues", lambda: program(buffers, [7]), 50),
        ("replay of 100 launches through queues", graph, 2),
    ):
        samples = [burst(work, times) for _ in range(1500)]
        told(f"{name}, best burst", min(samples))
        told(f"{name}, median", statistics.median(samples))
    device.close()


if __name__ == "__main__":
    report_start()
    report_compilers()
    report_launches()
    report_queues()
