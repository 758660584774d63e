"""The plugin's declarations of the driver against NVIDIA's header, where a toolkit is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiny_nv import memory, probe, program
from tiny_nv._cdef import DECLARATIONS
from tiny_nv._errors import ERRORS
from tiny_nv._native import ffi
from tinycore.dtype import dtypes

HEADER = Path("/usr/local/cuda/include/cuda.h")
ENUMS = {
    "cuDeviceGetAttribute": {"attribute": "CUdevice_attribute"},
    "cuPointerGetAttribute": {"attribute": "CUpointer_attribute"},
    "cuFuncGetAttribute": {"attribute": "CUfunction_attribute"},
    "cuFuncSetAttribute": {"attribute": "CUfunction_attribute"},
    "cuTensorMapEncodeTiled": {
        "dtype": "CUtensorMapDataType",
        "interleave": "CUtensorMapInterleave",
        "swizzle": "CUtensorMapSwizzle",
        "l2_promotion": "CUtensorMapL2promotion",
        "outside": "CUtensorMapFloatOOBfill",
    },
}
"""Enumerations of parameters for which the plugin has an int."""
OLDER = {"cuEventElapsedTime"}
"""Functions that the driver has under this name, and a newer header renames."""
VALUES = {
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": probe._UNITS,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": probe._MAJOR,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": probe._MINOR,
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": probe._SHARED_BYTES,
    "CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": program._MOST_THREADS,
    "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": program._STATIC_SHARED,
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": program._DYNAMIC_SHARED,
    "CU_JIT_ERROR_LOG_BUFFER": program._ERROR_LOG,
    "CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES": program._ERROR_LOG_BYTES,
    "CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL": memory._DEVICE_ORDINAL,
    "CU_MEMHOSTALLOC_PORTABLE": memory._PORTABLE,
    "CU_EVENT_DISABLE_TIMING": 2,
    "CU_STREAM_DEFAULT": 0,
    "(long)CU_LAUNCH_PARAM_BUFFER_POINTER": program._POINTER,
    "(long)CU_LAUNCH_PARAM_BUFFER_SIZE": program._SIZE,
    "(long)CU_LAUNCH_PARAM_END": 0,
    "sizeof(CUDA_KERNEL_NODE_PARAMS_v2)": ffi.sizeof("CUDA_KERNEL_NODE_PARAMS"),
    "sizeof(CUtensorMap)": ffi.sizeof("CUtensorMap"),
    "CU_TENSOR_MAP_INTERLEAVE_NONE": program._NOT_INTERLEAVED,
    "CU_TENSOR_MAP_L2_PROMOTION_L2_128B": program._PROMOTES_LINES,
    "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE": program._ZEROS_OUTSIDE,
    "CU_TENSOR_MAP_SWIZZLE_NONE": program.MAP_SWIZZLES[0],
    "CU_TENSOR_MAP_SWIZZLE_32B": program.MAP_SWIZZLES[32],
    "CU_TENSOR_MAP_SWIZZLE_64B": program.MAP_SWIZZLES[64],
    "CU_TENSOR_MAP_SWIZZLE_128B": program.MAP_SWIZZLES[128],
    "CU_TENSOR_MAP_DATA_TYPE_UINT8": program.MAP_TYPES[dtypes.uint8],
    "CU_TENSOR_MAP_DATA_TYPE_FLOAT16": program.MAP_TYPES[dtypes.float16],
    "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16": program.MAP_TYPES[dtypes.bfloat16],
    "CU_TENSOR_MAP_DATA_TYPE_FLOAT32": program.MAP_TYPES[dtypes.float32],
    "CU_TENSOR_MAP_DATA_TYPE_TFLOAT32": program._ROUNDED,
    **{name: value for value, name in ERRORS.items()},
}


def declared() -> Iterator[str]:
    """The plugin's functions, declared once more after the header."""
    for name, parameters in re.findall(r"CUresult (cu\w+)\(([^)]*)\);", DECLARATIONS, re.DOTALL):
        text = " ".join(parameters.split())
        text = text.replace("CUDA_KERNEL_NODE_PARAMS", "CUDA_KERNEL_NODE_PARAMS_v2")
        for parameter, enumeration in ENUMS.get(name, {}).items():
            text = text.replace(f"int {parameter}", f"{enumeration} {parameter}")
        text = text.replace("uint32_t", "cuuint32_t").replace("uint64_t", "cuuint64_t")
        text = text.replace("int *options", "CUjit_option *options")
        if name in OLDER:
            yield f"#undef {name}"
        yield f"CUresult CUDAAPI {name}({text});"


def test_declarations_are_those_of_the_header(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None or not HEADER.exists():
        pytest.skip("it needs a C compiler and the cuda.h of a CUDA toolkit")
    checks = [f'_Static_assert({name} == {value}, "{name}");' for name, value in VALUES.items()]
    file = tmp_path / "check.c"
    file.write_text("\n".join(["#include <cuda.h>", *declared(), *checks]))

    command = [compiler, "-std=gnu11", "-fsyntax-only", f"-I{HEADER.parent}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
