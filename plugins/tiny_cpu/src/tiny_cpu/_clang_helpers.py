"""C functions in front of a kernel, for what C lacks or leaves undefined.

Each function here defines a helper for some type where it is new, and returns its name.
The bodies serve scalars and vectors alike: clang's vectors take operators and `?:` lane by lane.
"""

from __future__ import annotations

from typing import Final

from tinycore.dtype import DType, dtypes
from tinycore.render.writer import Writer
from tinycore.uop.op import Op

NAN: Final = '__builtin_nanf("")'
PREFIXES: Final = {Op.MAX: "max", Op.MIN: "min", Op.IDIV: "divide", Op.MOD: "remainder"}

ROOTS_OF_REGISTERS: Final = {
    dtypes.float32: (
        ("__AVX512F__", 64, "__builtin_ia32_sqrtps512({0}, 4)"),
        ("__AVX__", 32, "__builtin_ia32_sqrtps256({0})"),
        ("__SSE__", 16, "__builtin_ia32_sqrtps({0})"),
    ),
    dtypes.float64: (
        ("__AVX512F__", 64, "__builtin_ia32_sqrtpd512({0}, 4)"),
        ("__AVX__", 32, "__builtin_ia32_sqrtpd256({0})"),
        ("__SSE2__", 16, "__builtin_ia32_sqrtpd({0})"),
    ),
}
"""Square roots of a whole register: the macro of the extension, bytes, the builtin of clang. Of a
loop over the lanes clang makes as many instructions. The 4 rounds as the control register says."""


def suffix(dtype: DType) -> str:
    """A type as part of a name: float32, or float32x8."""
    return dtype.name + (f"x{dtype.count}" if dtype.count > 1 else "")


def same_width(dtype: DType, kind: str) -> DType:
    """The `int` or `uint` with lanes as wide; comparisons of vectors yield the `int`."""
    return dtypes.by_name[f"{kind}{dtype.bits}"].vec(dtype.count)


def extreme(op: Op, dtype: DType, writer: Writer) -> str:
    """MAX or MIN: one instruction, and one more for NaN in `b`; NaN in `a` passes the first."""
    name, t = f"{PREFIXES[op]}_{suffix(dtype)}", writer.type(dtype)
    test = "a < b" if op is Op.MAX else "b < a"
    body = f"return {test} ? b : a;"
    if dtype.kind == "float":
        body = f"{t} c = {test} ? b : a; return b == b ? c : ({t}){NAN};"
    writer.define(f"static inline {t} {name}({t} a, {t} b) {{ {body} }}")
    return name


def streaming(dtype: DType, writer: Writer) -> str:
    """A store past the caches where the place is aligned, as it must be for that."""
    name, t, scalar = f"stream_{suffix(dtype)}", writer.type(dtype), writer.type(dtype.scalar())
    size = dtype.size_bytes
    writer.define(f"typedef {scalar} line_{t} __attribute__((ext_vector_type({dtype.count})));")
    body = (
        f"if ((__UINTPTR_TYPE__)p % {size}) *({t} *)p = v; "
        f"else __builtin_nontemporal_store((line_{t})v, (line_{t} *)p);"
    )
    writer.define(f"static inline void {name}({scalar} *p, {t} v) {{ {body} }}")
    return name


def fetching(dtype: DType, writer: Writer) -> str:
    """A load of lanes that also asks the second cache for what lies some bytes behind them."""
    name, t, scalar = f"fetch_{suffix(dtype)}", writer.type(dtype), writer.type(dtype.scalar())
    body = f"__builtin_prefetch((const char *)p + ahead, 0, 2); return *({t} *)p;"
    writer.define(f"static inline {t} {name}(const {scalar} *p, int64_t ahead) {{ {body} }}")
    return name


def division(op: Op, dtype: DType, writer: Writer) -> str:
    """IDIV or MOD that yields 0 for a zero divisor, and wraps for the least number over -1."""
    name, t = f"{PREFIXES[op]}_{suffix(dtype)}", writer.type(dtype)
    trivial = "b == 0" if dtype.kind == "uint" else "(b == 0) | (b == -1)"
    body = f"{t} d = {trivial} ? ({t})1 : b; "
    if op is Op.MOD:
        body += "return a % d;"
    elif dtype.kind == "uint":
        body += "return b == 0 ? b : a / d;"
    else:
        unsigned = writer.type(same_width(dtype, "uint"))
        body += f"return b == 0 ? b : b == -1 ? ({t})(-({unsigned})a) : a / d;"
    writer.define(f"static inline {t} {name}({t} a, {t} b) {{ {body} }}")
    return name


def truncation(target: DType, source: DType, writer: Writer) -> str:
    """A float32 or float64 to an integer; what does not fit becomes the least of a carrier type."""
    name, t, s = f"{suffix(source)}_to_{suffix(target)}", writer.type(target), writer.type(source)
    scalar = target.scalar()
    wide = scalar.itemsize == 8 or scalar is dtypes.uint32
    carrier = (dtypes.int64 if wide else dtypes.int32).vec(target.count)
    if scalar is dtypes.uint64:
        signed = truncation(carrier, source, writer)
        f = "f" if source.itemsize == 4 else ""
        small, fits = (masked(f"x < 0x1p{n}{f}", carrier, source, writer) for n in (63, 64))
        high, sign = f"({t}){signed}(x - 0x1p63{f})", f"({t})0x8000000000000000ull"
        body = f"return {small} ? ({t}){signed}(x) : {fits} ? {high} ^ {sign} : {sign};"
    else:
        c = writer.type(carrier)
        least = f"({c})(-{2 ** (carrier.bits - 1) - 1}{'ll' if wide else ''} - 1)"
        fits = masked(in_range(carrier, source), carrier, source, writer)
        body = f"{c} y = {fits} ? {converted('x', c, target)} : {least}; "
        body += f"return {converted('y', t, target)};"
    writer.define(f"static inline {t} {name}({s} x) {{ {body} }}")
    return name


def converted(text: str, name: str, dtype: DType) -> str:
    """The text converted to a type that is called `name`, with as many lanes as `dtype`."""
    return f"({name}){text}" if dtype.count == 1 else f"__builtin_convertvector({text}, {name})"


def in_range(carrier: DType, source: DType) -> str:
    """Condition, as code, that `x` truncated fits the carrier; false for NaN."""
    bits = carrier.bits - 1
    if source.itemsize == 4:
        return f"(x >= -0x1p{bits}f) & (x < 0x1p{bits}f)"
    least = "x > -2147483649.0" if bits == 31 else "x >= -0x1p63"
    return f"({least}) & (x < 0x1p{bits})"


def masked(test: str, carrier: DType, source: DType, writer: Writer) -> str:
    """A condition on `x` as `?:` wants it: lanes of a vector as wide as the carrier's."""
    if carrier.count == 1:
        return f"({test})"
    if carrier.itemsize == source.itemsize:
        return f"({test})"
    return f"__builtin_convertvector({test}, {writer.type(carrier)})"


def bits_of(target: DType, source: DType, writer: Writer) -> str:
    """The same bits of a scalar as another type."""
    name, t, s = f"{source.name}_as_{target.name}", writer.type(target), writer.type(source)
    body = f"{t} y; __builtin_memcpy(&y, &x, sizeof y); return y;"
    writer.define(f"static inline {t} {name}({s} x) {{ {body} }}")
    return name


def narrowing(dtype: DType, source: DType, writer: Writer) -> str:
    """A float32 to a half, as one conversion.

    Where contraction is allowed, clang joins it with a conversion from float64 before it, for which
    x86 has no instruction.
    """
    name, t, s = f"{suffix(source)}_to_{suffix(dtype)}", writer.type(dtype), writer.type(source)
    body = f"return {converted('x', t, dtype)};"
    off = "#pragma clang fp contract(off)"
    writer.define(f"static inline {t} {name}({s} x) {{\n{off}\n  {body}\n}}")
    return name


def square_root(dtype: DType, writer: Writer) -> str:
    """The square root; clang 15 and 16 have it for scalars, and for registers of an x86-64."""
    if dtype.count == 1:
        return "__builtin_sqrt" if dtype is dtypes.float64 else "__builtin_sqrtf"
    name, t = f"sqrt_{suffix(dtype)}", writer.type(dtype)
    scalar, opening = square_root(dtype.scalar(), writer), f"static inline {t} {name}({t} x)"
    lines = [
        "#if __has_builtin(__builtin_elementwise_sqrt)",
        f"#define {name} __builtin_elementwise_sqrt",
    ]
    for macro, size, builtin in ROOTS_OF_REGISTERS[dtype.scalar()]:
        pieces, rest = divmod(dtype.size_bytes, size)
        if pieces and not rest:
            part = writer.type(dtype.scalar().vec(size // dtype.itemsize))
            call = builtin.format(f"(({part} *)&x)[i]")
            loop = f"for (int i = 0; i < {pieces}; i++) (({part} *)&x)[i] = ({part}){call};"
            lines += [f"#elif defined({macro})", f"{opening} {{ {loop} return x; }}"]
    loop = f"for (int i = 0; i < {dtype.count}; i++) x[i] = {scalar}(x[i]);"
    lines += ["#else", f"{opening} {{ {loop} return x; }}", "#endif"]
    writer.define("\n".join(lines))
    return name
