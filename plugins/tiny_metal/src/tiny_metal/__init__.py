"""GPUs of Macs for tinycore, by Metal. Importing this module opens no library."""

from tinycore.plugin import Backend, deferred

__all__ = ["BACKEND"]

_DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 bfloat16 float32 fp8e4m3 fp8e5m2 fp8e4m3fnuz fp8e5m2fnuz"
)

BACKEND = Backend(
    name="METAL",
    api=(2, 0),
    count=deferred("tiny_metal.probe:count"),
    probe=deferred("tiny_metal.probe:reason"),
    open=deferred("tiny_metal.device:MetalDevice"),
    renderers={"MSL": deferred("tiny_metal.device:toolchain")},
    capabilities=frozenset(
        {
            "exchange",
            "external_pointer",
            "graph",
            "host_memory",
            "local_memory",
            "queues",
            "varied",
            *_DTYPES.split(),
        }
    ),
    dlpack=8,
    priority=230,
)
