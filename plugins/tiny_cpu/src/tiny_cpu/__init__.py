"""The CPU device of tinycore. Importing this module opens no library and starts no thread.

CLANG compiles C with the clang that is installed, LLVM compiles LLVM IR in this process through
llvmlite; both make the same machine code for the same kernel. Kernels run on a pool of native
threads.
"""

from tinycore.plugin import Backend, Interface, deferred

__all__ = ["BACKEND"]

_DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 bfloat16 float32 float64 fp8e4m3 fp8e5m2 fp8e4m3fnuz fp8e5m2fnuz"
)

BACKEND = Backend(
    name="CPU",
    api=(2, 0),
    count=deferred("tiny_cpu.probe:count"),
    probe=deferred("tiny_cpu.probe:reason"),
    open=deferred("tiny_cpu.device:open_cpu"),
    export=deferred("tiny_cpu.export:write"),
    renderers={
        "CLANG": deferred("tiny_cpu.device:clang_toolchain"),
        "LLVM": deferred("tiny_cpu.device:llvm_toolchain"),
    },
    capabilities=frozenset(
        {"host_memory", "external_pointer", "peer_copy", "graph", "queues", *_DTYPES.split()}
    ),
    interfaces={"DIRECT": Interface(), "HCQ": Interface(automatic=False)},
    priority=100,
    platforms=("linux", "darwin"),
    dlpack=1,
)
