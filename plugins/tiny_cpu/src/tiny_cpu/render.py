"""The two languages of the CPU: freestanding C for clang, and LLVM IR.

Both render a kernel to one function with the ABI that `tiny_cpu` programs are called by:

    void NAME(void *const *buffers, const int64_t *values, int64_t begin, int64_t end)

`buffers[i]` is the memory of slot i, `values[i]` the i-th variable by name, and the PARALLEL
range runs from `begin` to `end`; a kernel without one ignores both. What a kernel writes in one
slot overlaps no other. Nothing outside the function is called, save the `memset` and `memcpy` that
compilers insert on their own.

What C and LLVM leave undefined is defined here, alike in both languages:

- integers wrap; an integer divided by zero is 0, and so is the remainder;
- a float that does not fit an integer becomes what x86 makes of it: the least int32 (for types up
  to int32) or else the least int64, cut to the width of the type; the same goes for NaN;
- a shift takes its amount modulo the width;
- any byte but 0 is true when it is loaded as a bool.

Products may be fused into sums (one rounding in place of two); nothing else is reordered.
"""

from tiny_cpu._render_clang import Clang, ClangBaseline
from tiny_cpu._render_llvm import LlvmCpu, LlvmCpuBaseline

__all__ = ["Clang", "ClangBaseline", "LlvmCpu", "LlvmCpuBaseline"]
