"""Helper functions written before a kernel, for what CUDA C lacks or leaves undefined.

They include no header, so that nvrtc needs none: a half is its bits, and its arithmetic the
instructions of PTX. Integers wrap, a quotient by zero is 0, a float that does not fit an integer
becomes the least one, greatest and least keep NaN (docs/numerics.md).
"""

from __future__ import annotations

from typing import Final

from tinycore.render.cxx import VECTORS

__all__ = ["HELPERS", "PRELUDE"]

PRELUDE: Final = f"""\
#define FUNCTION __device__ __forceinline__
{VECTORS}
template <class T, class S> FUNCTION T as(S x) {{ T y; memcpy(&y, &x, sizeof(T)); return y; }}"""
"""Helpers of every kernel: vectors that are only moved, and bits of one type as another."""

HALF_SOURCE: Final = """\
struct half { unsigned short bits; };
FUNCTION half half_bits(unsigned short x) { half y; y.bits = x; return y; }
FUNCTION float to_float(half x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
FUNCTION half to_half(float x) {
  half y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
#define HALF_BINARY(name, text) FUNCTION half name(half a, half b) \\
  { half y; asm(text " %0, %1, %2;" : "=h"(y.bits) : "h"(a.bits), "h"(b.bits)); return y; }
HALF_BINARY(operator+, "add.f16")
HALF_BINARY(operator-, "sub.f16")
HALF_BINARY(operator*, "mul.f16")
HALF_BINARY(greatest, "max.NaN.f16")
HALF_BINARY(least, "min.NaN.f16")
FUNCTION half operator/(half a, half b) { return to_half(to_float(a) / to_float(b)); }
FUNCTION half operator-(half a) { return half_bits(a.bits ^ 0x8000); }
FUNCTION half root(half a) { return to_half(sqrtf(to_float(a))); }
FUNCTION half whole(half a) { return to_half(truncf(to_float(a))); }
FUNCTION bool operator<(half a, half b) { return to_float(a) < to_float(b); }
FUNCTION bool operator==(half a, half b) { return to_float(a) == to_float(b); }
FUNCTION bool operator!=(half a, half b) { return to_float(a) != to_float(b); }"""

BFLOAT16: Final = """\
FUNCTION unsigned short to_bfloat16(float x) {
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
FUNCTION float from_bfloat16(unsigned short x) { return as<float>((unsigned)x << 16); }"""

EXTREMES: Final = """\
template <class T> FUNCTION T greatest(T a, T b) { return a < b || b != b ? b : a; }
template <class T> FUNCTION T least(T a, T b) { return b < a || b != b ? b : a; }
FUNCTION float greatest(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
FUNCTION float least(float a, float b) {
  float y;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}"""

ROOTS: Final = """\
FUNCTION float root(float x) { return sqrtf(x); }
FUNCTION double root(double x) { return sqrt(x); }
FUNCTION float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FUNCTION float whole(float x) { return truncf(x); }
FUNCTION double whole(double x) { return trunc(x); }"""

QUOTIENTS: Final = """\
template <class T> FUNCTION T quotient(T a, T b) {
  return b == T(0) ? T(0) : T(-1) < T(0) && b == T(-1) ? T(0ull - (unsigned long long)a) : T(a / b);
}
template <class T> FUNCTION T remainder(T a, T b) {
  return b == T(0) || (T(-1) < T(0) && b == T(-1)) ? T(0) : T(a % b);
}"""

TRUNCATIONS: Final = """\
FUNCTION int to_int(double x) {
  return x > -2147483649.0 && x < 2147483648.0 ? (int)x : (-2147483647 - 1);
}
FUNCTION int to_int(float x) {
  return x >= -2147483648.0f && x < 2147483648.0f ? (int)x : (-2147483647 - 1);
}
template <class T> FUNCTION long long to_long(T x) {
  const T most = (T)9223372036854775808.0;
  return x >= -most && x < most ? (long long)x : (-9223372036854775807ll - 1);
}
template <class T> FUNCTION unsigned long long to_unsigned_long(T x) {
  const T half_way = (T)9223372036854775808.0;
  const unsigned long long sign = 0x8000000000000000ull;
  if (x < half_way) return (unsigned long long)to_long(x);
  return x < 2 * half_way ? (unsigned long long)to_long(x - half_way) ^ sign : sign;
}"""

ASYNC: Final = """\
template <int N> FUNCTION void copy_async(void *to, const void *origin, bool wanted) {
  unsigned place;
  asm("{ .reg .u64 x; cvta.to.shared.u64 x, %1; cvt.u32.u64 %0, x; }" : "=r"(place) : "l"(to));
  const int size = wanted ? N : 0;
  if (N == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      :: "r"(place), "l"(origin), "r"(size) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
      :: "r"(place), "l"(origin), "n"(N), "r"(size) : "memory");
}"""
"""cp.async, which leaves out the first cache where it can; zeros take no memory."""

TILES: Final = """\
template <class T, bool turned> FUNCTION T load_tiles(const void *row) {
  const unsigned place = (unsigned)__cvta_generic_to_shared(row);
  vec<unsigned, sizeof(T) / 4> x;
#define TILES(count, words, trans, ...) \\
  asm volatile("ldmatrix.sync.aligned.m8n8.x" count trans ".shared.b16 " \\
    "{" words "}, [%" count "];" \\
    : __VA_ARGS__ : "r"(place) : "memory")
  if constexpr (sizeof(T) == 16 && turned)
    TILES("4", "%0, %1, %2, %3", ".trans", "=r"(x.v[0]), "=r"(x.v[1]), "=r"(x.v[2]), "=r"(x.v[3]));
  else if constexpr (sizeof(T) == 16)
    TILES("4", "%0, %1, %2, %3", "", "=r"(x.v[0]), "=r"(x.v[1]), "=r"(x.v[2]), "=r"(x.v[3]));
  else if constexpr (sizeof(T) == 8 && turned)
    TILES("2", "%0, %1", ".trans", "=r"(x.v[0]), "=r"(x.v[1]));
  else if constexpr (sizeof(T) == 8)
    TILES("2", "%0, %1", "", "=r"(x.v[0]), "=r"(x.v[1]));
  else if constexpr (turned)
    TILES("1", "%0", ".trans", "=r"(x.v[0]));
  else
    TILES("1", "%0", "", "=r"(x.v[0]));
#undef TILES
  return as<T>(x);
}"""
"""ldmatrix of one, two or four tiles, by the size of what a lane gets."""

PHASES: Final = """\
struct alignas(64) tensor_map { unsigned char bytes[128]; };
FUNCTION unsigned in_shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
FUNCTION void begin_phases(const void *barrier, unsigned copies) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\\n"
    "fence.mbarrier_init.release.cluster;" : : "r"(in_shared(barrier)), "r"(copies) : "memory");
}
FUNCTION void wait_phase(const void *barrier, unsigned parity) {
  unsigned ended;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\\n"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(ended) : "r"(in_shared(barrier)), "r"(parity) : "memory");
  } while (!ended);
}"""
"""Barriers whose phases end when all of their copies have come."""


def copy_box(rank: int) -> str:
    """A function that begins to copy a box of so many dimensions, in one phase of a barrier."""
    numbers = ", ".join(f"int c{axis}" for axis in range(rank))
    places = ", ".join(f"%{4 + axis}" for axis in range(rank))
    operands = "".join(f', "r"(c{axis})' for axis in range(rank))
    return f"""\
FUNCTION void copy_box(const void *to, const tensor_map &map, const void *barrier, unsigned bytes,
    {numbers}) {{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%2], %3;\\n"
    "cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes "
    "[%0], [%1, {{{places}}}], [%2];"
    : : "r"(in_shared(to)), "l"(&map), "r"(in_shared(barrier)), "r"(bytes){operands} : "memory");
}}"""


def share_box(rank: int) -> str:
    """A function that begins to copy a box to all groups of a cluster, which `mask` names."""
    numbers = ", ".join(f"int c{axis}" for axis in range(rank))
    places = ", ".join(f"%{4 + axis}" for axis in range(rank))
    operands = "".join(f', "r"(c{axis})' for axis in range(rank))
    return f"""\
FUNCTION void share_box(const void *to, const tensor_map &map, const void *barrier,
    unsigned short mask, {numbers}) {{
  asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    ".multicast::cluster [%0], [%1, {{{places}}}], [%2], %3;"
    : : "r"(in_shared(to)), "l"(&map), "r"(in_shared(barrier)), "h"(mask){operands} : "memory");
}}"""


EXPECT: Final = """\
FUNCTION void expect_box(const void *barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
    : : "r"(in_shared(barrier)), "r"(bytes) : "memory");
}"""
"""Part of `copy_box`, for a box that another group copies to this one as well."""

RANKS: Final = range(1, 6)

HELPERS: Final = {
    "half": HALF_SOURCE,
    "bfloat16": BFLOAT16,
    "extremes": EXTREMES,
    "roots": ROOTS,
    "quotients": QUOTIENTS,
    "truncations": TRUNCATIONS,
    "asynchronous copies": ASYNC,
    "tensor copies": "\n".join((PHASES, *map(copy_box, RANKS))),
    "shared copies": "\n".join((EXPECT, *map(share_box, RANKS))),
    "tiles": TILES,
}
"""Groups of functions by name; each is written where a kernel calls one of them."""
