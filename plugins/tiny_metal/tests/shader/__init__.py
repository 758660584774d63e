"""Kernels in the Metal Shading Language, run on the processor, with every access looked at.

clang compiles the source as C++ with a header of ours (`metal_stdlib`), its sanitizers call
`runtime.c` before each access, and threads of a group are fibers that take turns at barriers. No
device chooses this: it stands behind the mock of Metal in the tests.
"""
