"""Registers of an Adreno 6xx that a compute launch writes, by the names of Mesa's database."""

from __future__ import annotations

from typing import Final

CP_ALWAYS_ON_COUNTER: Final = 0x980
SP_CS_CNTL_0: Final = 0xA9B0
SP_CS_CNTL_1: Final = 0xA9B1
SP_CS_BOOLEAN_CF_MASK: Final = 0xA9B2
SP_CS_PROGRAM_COUNTER_OFFSET: Final = 0xA9B3
SP_CS_BASE: Final = 0xA9B4
SP_CS_PVT_MEM_PARAM: Final = 0xA9B6
SP_CS_PVT_MEM_BASE: Final = 0xA9B7
SP_CS_PVT_MEM_SIZE: Final = 0xA9B9
SP_CS_TSIZE: Final = 0xA9BA
SP_CS_CONFIG: Final = 0xA9BB
SP_CS_INSTR_SIZE: Final = 0xA9BC
SP_CS_PVT_MEM_STACK_OFFSET: Final = 0xA9BD
SP_CS_SAMPLER_BASE: Final = 0xA9E2
SP_CS_TEXMEMOBJ_BASE: Final = 0xA9E6
SP_CS_UAV_BASE: Final = 0xA9F2
SP_CS_USIZE: Final = 0xAA00
SP_MODE_CNTL: Final = 0xAB00
SP_PERFCTR_SHADER_MASK: Final = 0xAE0F
TPL1_CS_BORDER_COLOR_BASE: Final = 0xB180
TPL1_MODE_CNTL: Final = 0xB309
TPL1_DBG_ECO_CNTL: Final = 0xB600
SP_REG_PROG_ID_0: Final = 0xB983
SP_CS_CONST_CONFIG: Final = 0xB987
SP_CS_NDRANGE_0: Final = 0xB990
SP_CS_CONST_CONFIG_0: Final = 0xB997
SP_CS_WGE_CNTL: Final = 0xB998
SP_CS_KERNEL_GROUP_X: Final = 0xB999
SP_UPDATE_CNTL: Final = 0xBB08

NO_REGISTER: Final = 0xFC
"""r63.x, which stands for none."""
UPDATE_CS_STATE: Final = 1 << 5
UPDATE_CS_UAV: Final = 1 << 6
PERFCTR_COMPUTE: Final = 1 << 5
CONFIG_ENABLED: Final = 1 << 8
CONSTANTS_ENABLED: Final = 1 << 8
MERGED_REGISTERS: Final = 1 << 31
CONSTANTS_256: Final = 2 << 5
"""SP_CS_CNTL_1: the constant file has 256 vectors of four words."""
ISAM_CL: Final = 1
ISAM_GL: Final = 2
CONSTANT_DEMOTION: Final = 1
"""SP_MODE_CNTL, for code of ir3."""
BLOB_IDS: Final = 0x00CC_C0CF
"""SP_CS_CONST_CONFIG_0 for code of Qualcomm's compiler: group number in r51.w, its size in r48.x,
the offset in r51.x, the thread's number in r0.x."""
