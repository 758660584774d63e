"""Kernels by hand that tests of the driver launch."""

from tinycore.plugin import ProgramInfo

ADD = """\
#include <metal_stdlib>
using namespace metal;
kernel void add_(device int *data0 [[buffer(0)]], const device int *data1 [[buffer(1)]],
    constant long *values [[buffer(2)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 thread_ [[thread_position_in_threadgroup]]) {
  int i = group.x * 32 + thread_.x;
  data0[i] = data1[i] + (int)values[0];
}
"""
INFO = ProgramInfo("add", 2, ("n",), grid=(2, 1, 1), block=(32, 1, 1), written=frozenset({0}))
