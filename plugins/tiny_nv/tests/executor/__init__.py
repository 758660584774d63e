"""An executor of PTX on the processor: what a card would compute, and what it would not forgive.

For tests only; no device chooses it. Files in the order in which a launch passes them:

    faults.py       the ways in which a kernel is wrong, each an exception that names the place
    syntax.py       PTX text -> Module: functions, variables, instructions
    memory.py       global, shared, local and parameter memory, with every access checked
    registers.py    operands: registers, immediates and special registers as arrays over threads
    numbers.py      arithmetic of floating point that NumPy lacks: fma, rounding, small formats
    operations.py   arithmetic instructions, a row each
    conversions.py  cvt
    movement.py     loads, stores, atomics, asynchronous copies, shuffles, votes
    matrix.py       ldmatrix, stmatrix, mma.sync
    bulk.py         mbarrier objects, bulk copies and tensor maps
    warpgroup.py    wgmma
    launch.py       threads in lockstep: divergence, barriers, exits

Source of the meaning: NVIDIA, "PTX ISA", version 9.0. Threads of all blocks of a launch that fit
run in lockstep as NumPy arrays; where they diverge, those at the least program counter go first,
so that they meet again at the earliest instruction they have in common.
"""
