"""64-bit integers in WGSL, which has none: a vec2<u32> of the low word and the high one.

Each function is defined in front of the kernel where it is first needed, after those it calls.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import DType, dtypes
from tinycore.render.writer import Writer
from tinycore.uop.node import UOp
from tinycore.uop.op import Op

__all__ = ["OPERATIONS", "call", "is_wide"]

FUNCTIONS: Final = {
    "add_64": """
fn add_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + u32(low < a.x));
}""",
    "neg_64": """
fn neg_64(a: vec2<u32>) -> vec2<u32> { return add_64(~a, vec2<u32>(1u, 0u)); }""",
    "sub_64": """
fn sub_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - u32(a.x < b.x));
}""",
    "product_32": """
fn product_32(a: u32, b: u32) -> vec2<u32> {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
  return vec2<u32>(a * b, (a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u));
}""",
    "mul_64": """
fn mul_64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = product_32(a.x, b.x);
  return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);
}""",
    "shl_64": """
fn shl_64(a: vec2<u32>, by: u32) -> vec2<u32> {
  let n = by & 31u;
  let across = select(a.x >> ((32u - n) & 31u), 0u, n == 0u);
  let moved = vec2<u32>(a.x << n, (a.y << n) | across);
  return select(moved, vec2<u32>(0u, moved.x), (by & 32u) != 0u);
}""",
    "shr_64": """
fn shr_64(a: vec2<u32>, by: u32, above: u32) -> vec2<u32> {
  let n = by & 31u;
  let keep = (32u - n) & 31u;
  let across = select(a.y << keep, 0u, n == 0u);
  let top = select(above << keep, 0u, n == 0u);
  let moved = vec2<u32>((a.x >> n) | across, (a.y >> n) | top);
  return select(moved, vec2<u32>(moved.y, above), (by & 32u) != 0u);
}""",
    "lt_u64": """
fn lt_u64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return a.y < b.y || (a.y == b.y && a.x < b.x);
}""",
    "lt_i64": """
fn lt_i64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return i32(a.y) < i32(b.y) || (a.y == b.y && a.x < b.x);
}""",
    # Long division, bit by bit: the quotient in the first two words, the remainder in the others.
    "divide_u64": """
fn divide_u64(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  if ((a.y | b.y) == 0u && b.x != 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
  var quotient = vec2<u32>(0u, 0u);
  var rest = vec2<u32>(0u, 0u);
  for (var bit: i32 = 63; bit >= 0; bit--) {
    let carried = (rest.y >> 31u) != 0u;
    rest = shl_64(rest, 1u) | vec2<u32>(shr_64(a, u32(bit), 0u).x & 1u, 0u);
    if (carried || !lt_u64(rest, b)) {
      rest = sub_64(rest, b);
      quotient = quotient | shl_64(vec2<u32>(1u, 0u), u32(bit));
    }
  }
  return select(vec4<u32>(quotient, rest), vec4<u32>(0u), (b.x | b.y) == 0u);
}""",
    "abs_64": """
fn abs_64(a: vec2<u32>) -> vec2<u32> { return select(a, neg_64(a), i32(a.y) < 0); }""",
    "div_u64": """
fn div_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divide_u64(a, b).xy; }""",
    "mod_u64": """
fn mod_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return divide_u64(a, b).zw; }""",
    "div_i64": """
fn div_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let quotient = divide_u64(abs_64(a), abs_64(b)).xy;
  return select(quotient, neg_64(quotient), i32(a.y ^ b.y) < 0);
}""",
    "mod_i64": """
fn mod_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let rest = divide_u64(abs_64(a), abs_64(b)).zw;
  return select(rest, neg_64(rest), i32(a.y) < 0);
}""",
    "max_u64": """
fn max_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, lt_u64(a, b)); }""",
    "min_u64": """
fn min_u64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, lt_u64(b, a)); }""",
    "max_i64": """
fn max_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, lt_i64(a, b)); }""",
    "min_i64": """
fn min_i64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> { return select(a, b, lt_i64(b, a)); }""",
    # The highest 32 bits, the lowest of them set if any bit below is: so it is rounded only once.
    "u64_to_f32": """
fn u64_to_f32(a: vec2<u32>) -> f32 {
  if (a.y == 0u) { return f32(a.x); }
  let zeros = countLeadingZeros(a.y);
  let top = shl_64(a, zeros);
  return f32(top.y | u32(top.x != 0u)) * bitcast<f32>((159u - zeros) << 23u);
}""",
    "i64_to_f32": """
fn i64_to_f32(a: vec2<u32>) -> f32 {
  let size = u64_to_f32(abs_64(a));
  return select(size, -size, i32(a.y) < 0);
}""",
    # What does not fit, and NaN, becomes the least number.
    "f32_to_i64": """
fn f32_to_i64(a: f32) -> vec2<u32> {
  let bits = bitcast<u32>(a);
  let exponent = i32((bits >> 23u) & 0xffu) - 127;
  if (exponent < 0) { return vec2<u32>(0u, 0u); }
  if (exponent > 62) { return vec2<u32>(0u, 0x80000000u); }
  let digits = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
  let left = shl_64(digits, u32(max(exponent - 23, 0)));
  let size = select(left, digits >> vec2<u32>(u32(clamp(23 - exponent, 0, 31))), exponent < 23);
  return select(size, neg_64(size), (bits >> 31u) != 0u);
}""",
    "f32_to_u64": """
fn f32_to_u64(a: f32) -> vec2<u32> {
  let bits = bitcast<u32>(a);
  if ((bits >> 23u) != 190u) { return f32_to_i64(a); }
  return vec2<u32>(0u, ((bits & 0x7fffffu) | 0x800000u) << 8u);
}""",
}
"""The text of each function."""

NEEDS: Final = {
    "neg_64": ("add_64",),
    "mul_64": ("product_32",),
    "abs_64": ("neg_64",),
    "divide_u64": ("shl_64", "shr_64", "sub_64", "lt_u64"),
    "div_u64": ("divide_u64",),
    "mod_u64": ("divide_u64",),
    "div_i64": ("abs_64", "divide_u64"),
    "mod_i64": ("abs_64", "divide_u64"),
    "max_u64": ("lt_u64",),
    "min_u64": ("lt_u64",),
    "max_i64": ("lt_i64",),
    "min_i64": ("lt_i64",),
    "u64_to_f32": ("shl_64",),
    "i64_to_f32": ("abs_64", "u64_to_f32"),
    "f32_to_i64": ("shl_64", "neg_64"),
    "f32_to_u64": ("f32_to_i64",),
}
"""The functions that each calls."""

OPERATIONS: Final = {
    Op.ADD: ("add_64({0}, {1})",) * 2,
    Op.SUB: ("sub_64({0}, {1})",) * 2,
    Op.MUL: ("mul_64({0}, {1})",) * 2,
    Op.NEG: ("neg_64({0})",) * 2,
    Op.IDIV: ("div_i64({0}, {1})", "div_u64({0}, {1})"),
    Op.MOD: ("mod_i64({0}, {1})", "mod_u64({0}, {1})"),
    Op.MAX: ("max_i64({0}, {1})", "max_u64({0}, {1})"),
    Op.MIN: ("min_i64({0}, {1})", "min_u64({0}, {1})"),
    Op.CMPLT: ("lt_i64({0}, {1})", "lt_u64({0}, {1})"),
    Op.CMPNE: ("any({0} != {1})",) * 2,
    Op.CMPEQ: ("all({0} == {1})",) * 2,
    Op.AND: ("({0} & {1})",) * 2,
    Op.OR: ("({0} | {1})",) * 2,
    Op.XOR: ("({0} ^ {1})",) * 2,
    Op.SHL: ("shl_64({0}, {1}.x)",) * 2,
    Op.SHR: ("shr_64({0}, {1}.x, u32(i32({0}.y) >> 31u))", "shr_64({0}, {1}.x, 0u)"),
    Op.WHERE: ("select({2}, {1}, {0})",) * 2,
    Op.MULACC: ("add_64(mul_64({0}, {1}), {2})",) * 2,
}
"""The expression of each op on int64, and on uint64."""


def is_wide(dtype: DType) -> bool:
    """True if a scalar type is one of the two."""
    return dtype in (dtypes.int64, dtypes.uint64)


def call(text: str, writer: Writer) -> str:
    """The text, with the functions that it calls defined."""
    for name in FUNCTIONS:
        if f"{name}(" in text:
            define(name, writer)
    return text


def define(name: str, writer: Writer) -> None:
    """Put a function before the kernel, after those it calls."""
    for other in NEEDS.get(name, ()):
        define(other, writer)
    writer.define(FUNCTIONS[name].strip())


def expression(u: UOp, operands: list[str], writer: Writer) -> str:
    """Arithmetic on 64-bit integers."""
    kind = u.src[-1].dtype
    template = OPERATIONS[u.op][kind is dtypes.uint64]
    return call(template.format(*operands), writer)
