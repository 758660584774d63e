"""Offsets of Mesa's structures in `mesa.py`, against what the library knows for a debugger."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tiny_qcom import mesa
from tiny_qcom.ir3 import library_path
from tinycore.errors import CompilerUnavailable

try:
    LIBRARY = library_path()
except CompilerUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)
if shutil.which("gdb") is None:
    pytest.skip("structures are asked of gdb, which is not installed", allow_module_level=True)

pytestmark = pytest.mark.slow

OFFSETS = {
    "ir3_compiler": {"has_preamble": 409},
    "ir3_compiler_options": {"disable_cache": 1},
    "nir_builder": {"exact": 16, "shader": 24, "impl": 32},
    "nir_shader": {"info": 48},
    "nir_def": {"bit_size": 29},
    "nir_load_const_instr": {"def": 32, "value": 64},
    "nir_undef_instr": {"def": 32},
    "nir_intrinsic_instr": {"def": 40, "num_components": 72, "const_index": 76, "src": 120},
    "nir_intrinsic_info": {"name": 0, "index_map": 33},
    "nir_alu_instr": {"def": 40, "src": 72},
    "nir_alu_src": {"src": 0, "swizzle": 32},
    "nir_src": {"ssa": 24},
    "nir_deref_instr": {
        "modes": 36,
        "type": 40,
        "var": 48,
        "parent": 48,
        "arr.index": 80,
        "def": 120,
    },
    "shader_info": {
        "num_ubos": 54,
        "num_images": 57,
        "shared_size": 268,
        "workgroup_size": 280,
        "bit_sizes_int": 305,
    },
    "ir3_shader_variant": {
        "bin": 192,
        "const_state": 200,
        "imm_state": 208,
        "imm_state.count": 212,
        "imm_state.values": 216,
        "info": 224,
        "info.max_reg": 248,
        "info.max_half_reg": 249,
        "branchstack": 564,
        "constlen": 576,
        "pvtmem_size": 580,
        "shared_size": 588,
        "image_mapping": 1124,
        "mergedregs": 1243,
        "cs": 1484,
        "cs.local_invocation_id": 1492,
        "cs.work_group_id": 1496,
    },
    "ir3_ibo_mapping": {"tex_to_image": 64, "num_tex": 96},
    "ir3_const_state": {"allocs": 44, "allocs.max_const_offset_vec4": 236, "ubo_state": 384},
    "ir3_ubo_analysis_state": {"range": 0, "num_enabled": 1024},
    "ir3_ubo_range": {"ubo.block": 8, "offset": 16, "start": 20, "end": 24},
    "isa_decode_options": {"gpu_id": 0},
}
SIZES = {
    "nir_builder": 40,
    "nir_src": 32,
    "nir_alu_src": 48,
    "ir3_shader_options": 228,
    "ir3_shader_key": 80,
    "ir3_shader_nir_options": 4,
    "ir3_ubo_range": 32,
    "isa_decode_options": 80,
    "ir3_compiler_options": 32,
    "fd_dev_id": 16,
    "nir_op_info": mesa.OPERATIONS[1],
    "nir_intrinsic_info": mesa.INTRINSICS[1],
}
NUMBERS = {
    "(int)nir_num_opcodes": mesa.OPERATIONS[0],
    "(int)nir_num_intrinsics": mesa.INTRINSICS[0],
    "(int)MESA_SHADER_COMPUTE": mesa.COMPUTE,
    "(int)nir_type_float32": mesa.FLOAT_32,
    "(int)SCOPE_WORKGROUP": mesa.WORKGROUP,
    "(int)nir_var_function_temp": mesa.MODE_TEMPORARY,
    "(int)nir_var_mem_shared": mesa.MODE_SHARED,
    "(int)nir_var_mem_global": mesa.MODE_GLOBAL,
    "(int)nir_jump_break": mesa.BREAK,
    "(int)nir_deref_type_array": mesa.DEREF_ARRAY,
    "(int)GLSL_SAMPLER_DIM_2D": mesa.PLANE_KIND,
    "(int)ACCESS_CAN_REORDER": mesa.CAN_REORDER,
}


def asked(expressions: list[str], library: Path) -> dict[str, str]:
    """Values of expressions, printed by gdb."""
    commands = [word for one in expressions for word in ("-ex", f"output {one}", "-ex", "echo \\n")]
    done = subprocess.run(
        ["gdb", "-batch", "-nx", *commands, str(library)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    lines = [line for line in done.stdout.splitlines() if re.fullmatch(r"-?\d+", line)]
    assert len(lines) == len(expressions), done.stderr[-2000:]
    return dict(zip(expressions, lines, strict=True))


def test_structures_and_numbers_of_mesa_are_those_of_the_library() -> None:
    expected = {
        f"(long)&((struct {name} *)0)->{field}": offset
        for name, fields in OFFSETS.items()
        for field, offset in fields.items()
    }
    expected |= {f"(long)sizeof(struct {name})": size for name, size in SIZES.items()} | NUMBERS
    found = asked(list(expected), LIBRARY)
    assert {one: int(said) for one, said in found.items()} == expected
