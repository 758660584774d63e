"""Tables of C: the types, the suffixes of literals and the expressions that dialects start from.

Floor 2. Imports `dtype`, `uop`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tinycore.dtype import DType, dtypes
from tinycore.uop.op import Op

C_TYPES: Final[Mapping[DType, str]] = {
    dtypes.void: "void",
    dtypes.index: "int",
    dtypes.bool: "bool",
    dtypes.int8: "char",
    dtypes.uint8: "unsigned char",
    dtypes.int16: "short",
    dtypes.uint16: "unsigned short",
    dtypes.int32: "int",
    dtypes.uint32: "unsigned int",
    dtypes.int64: "long",
    dtypes.uint64: "unsigned long",
    dtypes.float16: "half",
    dtypes.float32: "float",
    dtypes.float64: "double",
}

C_SUFFIXES: Final[Mapping[DType, str]] = {
    dtypes.uint32: "u",
    dtypes.int64: "l",
    dtypes.uint64: "ul",
    dtypes.float16: "h",
    dtypes.float32: "f",
}

C_EXPRESSIONS: Final[Mapping[Op, str]] = {
    Op.NEG: "(-{0})",
    Op.RECIPROCAL: "({one} / {0})",
    Op.SQRT: "sqrt({0})",
    Op.TRUNC: "trunc({0})",
    Op.ADD: "({0} + {1})",
    Op.SUB: "({0} - {1})",
    Op.MUL: "({0} * {1})",
    Op.FDIV: "({0} / {1})",
    Op.IDIV: "({0} / {1})",
    Op.MOD: "({0} % {1})",
    Op.CMPLT: "({0} < {1})",
    Op.CMPNE: "({0} != {1})",
    Op.CMPEQ: "({0} == {1})",
    Op.AND: "({0} & {1})",
    Op.OR: "({0} | {1})",
    Op.XOR: "({0} ^ {1})",
    Op.SHL: "({0} << {1})",
    Op.SHR: "({0} >> {1})",
    Op.WHERE: "({0} ? {1} : {2})",
    Op.MULACC: "({0} * {1} + {2})",
}
