"""The CL device of tinycore: OpenCL. Importing this module opens no library."""

from tinycore.plugin import Backend, deferred

__all__ = ["BACKEND"]

_DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 bfloat16 float32 float64 fp8e4m3 fp8e5m2 fp8e4m3fnuz fp8e5m2fnuz"
)

BACKEND = Backend(
    name="CL",
    api=(2, 0),
    count=deferred("tiny_cl.probe:count"),
    probe=deferred("tiny_cl.probe:reason"),
    open=deferred("tiny_cl.device:ClDevice"),
    renderers={"OPENCL": deferred("tiny_cl.device:toolchain")},
    capabilities=frozenset(
        {"host_memory", "external_pointer", "graph", "image", "local_memory", "varied"}
        | {*_DTYPES.split()}
    ),
    settings=deferred("tiny_cl.settings:ClSettings"),
    priority=50,
    priority_here=deferred("tiny_cl.probe:priority"),
)
