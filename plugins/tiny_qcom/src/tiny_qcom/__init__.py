"""Adreno 6xx for tinycore. Importing this module opens no device file and loads no library."""

from tinycore.plugin import Backend, deferred

__all__ = ["BACKEND"]

_DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 bfloat16 float32 fp8e4m3 fp8e5m2 fp8e4m3fnuz fp8e5m2fnuz"
)

BACKEND = Backend(
    name="QCOM",
    api=(2, 0),
    count=deferred("tiny_qcom.probe:count"),
    probe=deferred("tiny_qcom.probe:reason"),
    open=deferred("tiny_qcom.device:QcomDevice"),
    renderers={
        "IR3": deferred("tiny_qcom.toolchain:ir3"),
        "QCOMCL": deferred("tiny_qcom.toolchain:opencl"),
    },
    capabilities=frozenset(
        {"host_memory", "external_pointer", "graph", "image", "local_memory", *_DTYPES.split()}
    ),
    settings=deferred("tiny_qcom.settings:QcomSettings"),
    priority=210,
    platforms=("linux",),
)
