"""Seeded faults: renderers and code objects with one thing wrong at a time, for tests to find.

    python plugins/tiny_amd/tests/renderer_faults.py          all of them, some minutes
    python plugins/tiny_amd/tests/renderer_faults.py 3 7      numbers 3 to 6

As `driver_faults.py`, for what makes kernels: LLVM IR, HIP, matrix instructions, facts of cards,
and the reading of code objects. Tests run their kernels on the emulator.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

sys.path.append(str(Path(__file__).parents[3] / "tests/support"))  # where this is run as a program

from seeded_faults import Fault, Seeded

TESTS: Final = Path(__file__).parent
SOURCES: Final = TESTS.parent / "src/tiny_amd"
RUN: Final = (
    *("test_renderers.py", "test_backend.py", "test_hip.py", "test_tensors.py", "test_matrix.py"),
)
CHOSEN: Final = "not (spills or training or convolution or attention or transposed or seeded)"

FAULTS: Final[tuple[Fault, ...]] = (
    # LLVM IR
    (
        "render.py",
        '"amdgpu-flat-work-group-size": f"{threads},{threads}"',
        '"amdgpu-flat-work-group-size": "32,32"',
    ),
    (
        "render.py",
        'named.get(slot, f"ptr addrspace(1) %unused{slot}") for slot in slots]',
        "named[slot] for slot in slots if slot in named]",
    ),
    ("render.py", 'f"i64 %given{i}"\n            value', 'f"i64 %given{0}"\n            value'),
    (
        "render.py",
        '[*buffers, *(f"i64 %given{i}" for i in range(len(kernel.variables)))]',
        '[*(f"i64 %given{i}" for i in range(len(kernel.variables))), *buffers]',
    ),
    (
        "render.py",
        "[{u.dtype.size} x {storage_name(u.dtype.base)}]",
        "[{u.dtype.size // 2} x {storage_name(u.dtype.base)}]",
    ),
    ("render.py", 'f"@shared{u.arg}"', 'f"@shared{0 * u.arg}"'),
    ("render.py", '        writer.line("call void @llvm.amdgcn.s.barrier()")\n', ""),
    ("render.py", "        writer.line('fence syncscope(\"workgroup\") release')\n", ""),
    ("render.py", 'Op.DEFINE_REG: "5"', 'Op.DEFINE_REG: "3"'),
    ("render.py", "if u.arg.threads != WMMA_LANES or is_added_to(u, writer.kernel):", "if True:"),
    (
        "render.py",
        '{"grid": "workgroup", "block": "workitem"}',
        '{"grid": "workitem", "block": "workgroup"}',
    ),
    ("render.py", '"xyz"[int(u.arg[-1])]', '"xyz"[0 * int(u.arg[-1])]'),
    ("render.py", "range(i32 0, {max(most, 1)})", "range(i32 0, 1)"),
    ("render.py", "frozenset({dtypes.bfloat16, *dtypes.fp8s})", "frozenset({*dtypes.fp8s})"),
    # LLVM
    ("llvm.py", "-dot7-insts,-dot8-insts,", ""),
    ("llvm.py", ",-unaligned-access-mode", ""),
    # matrices
    ("matrix.py", '"n1 n2 n4 n8 m1 | m2 m4 m8"', '"n1 n2 n4 n8 m8 | m1 m2 m4"'),
    ("matrix.py", '"m1 m2 m4 m8 k8 | k1 k2 k4"', '"m1 m2 m4 m8 k1 | k2 k4 k8"'),
    ("matrix.py", '"n1 n2 n4 n8 m4 m8 | m1 m2"', '"n1 n2 n4 n8 m1 m2 | m4 m8"'),
    ("matrix.py", '16: "k4 k8 | k1 k2"', '16: "k1 k2 | k4 k8"'),
    (
        "matrix.py",
        '("i1 true", "a", "i1 true", "b", "c", "i1 false")',
        '("i1 true", "a", "i1 false", "b", "c", "i1 false")',
    ),
    (
        "matrix.py",
        '("a", "b", "c", "i32 0", "i32 0", "i32 0")',
        '("a", "b", "c", "i32 1", "i32 0", "i32 0")',
    ),
    (
        "matrix.py",
        '(dtypes.fp8e4m3, dtypes.fp8e4m3fnuz), "fp8")',
        '(dtypes.fp8e4m3, dtypes.fp8e4m3fnuz), "bf8")',
    ),
    (
        "matrix.py",
        'total = "i32" if operand.kind == "int" else "f32"\n    both',
        'total = "f32"\n    both',
    ),
    # facts of architectures
    (
        "arch.py",
        '"gfx942": Arch(304, 0x80000, CDNA3, 64, CDNA)',
        '"gfx942": Arch(304, 0x80000, CDNA3, 32, CDNA)',
    ),
    ("arch.py", '"gfx1201": Arch(64, 0x60000, RDNA4,', '"gfx1201": Arch(64, 0x60000, RDNA3,'),
    # HIP
    (
        "hip.py",
        "amdgpu_flat_work_group_size({threads}, {threads})",
        "amdgpu_flat_work_group_size(32, 32)",
    ),
    ("hip.py", "__builtin_amdgcn_s_barrier(); ", ""),
    ("hip.py", '\'__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); ', "'"),
    ("hip.py", '"__builtin_amdgcn_workgroup_id_{xyz}()"', '"__builtin_amdgcn_workitem_id_{xyz}()"'),
    (
        "hip.py",
        'Op.TRUNC: "__builtin_elementwise_trunc({0})"',
        'Op.TRUNC: "__builtin_elementwise_floor({0})"',
    ),
    ("hip.py", "frozenset({dtypes.bfloat16, *dtypes.fp8s})", "frozenset({*dtypes.fp8s})"),
    (
        "hip.py",
        "if u.arg.threads != WMMA_LANES or is_added_to(u, writer.kernel):",
        "if True:",
    ),
    ("hip.py", '"b": "as<X>(b)"', '"b": "as<X>(a)"'),
    ("hip.py", 'family = ["gfx12"] if "rdna4"', 'family = [] if "rdna4"'),
    # code objects
    (
        "code.py",
        '5: Relocation("R_AMDGPU_REL64", _RELATIVE',
        '5: Relocation("R_AMDGPU_REL64", _ABSOLUTE',
    ),
    ("code.py", '"<IIIH", data, 44)', '"<IIIH", data, 48)'),
    ("code.py", '"<q", data, 16)', '"<q", data, 8)'),
    ("code.py", "self._image.place(base) + bytes(PREFETCHED_BYTES)", "self._image.place(base)"),
    ("code.py", "if symbol not in self._image.symbols:", "if False:"),
    ("code.py", "OF_HIP if UNIT_ID in binary else AMDGPU", "AMDGPU"),
)

SEEDED: Final = Seeded(TESTS, SOURCES, "", RUN, CHOSEN, 2000, FAULTS)


if __name__ == "__main__":
    sys.exit(SEEDED.main(sys.argv[1:]))
