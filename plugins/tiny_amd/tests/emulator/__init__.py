"""An emulator of AMD cards on the processor: it executes the machine code that compilers emit.

For tests only; no device chooses it. Files in the order in which a dispatch passes them:

    opcodes.py     numbers and names of instructions, by encoding
    decode.py      bytes -> Instruction: fields, operands, length
    state.py       registers of all waves that run; operands as arrays over waves and lanes
    scalar.py      SOP1, SOP2, SOPC, SOPK: one number a wave
    vector.py      VOP1, VOP2, VOP3, VOPC, VOPD: one number a lane
    packed.py      VOP3P: two halves of a register, dot products, WMMA
    transfer.py    SMEM, DS, GLOBAL, SCRATCH, FLAT: memory
    rdna2.py       gfx10.3: other encodings and numbers, parts of registers (SDWA)
    rdna4.py       gfx12: other encodings and waits, WMMA
    cdna3.py       gfx942: other encodings, waves of 64, accumulators, MFMA
    dispatch.py    kernel descriptors, work-groups, waves in lockstep

An operation has one name and one meaning in all families: that of RDNA3, if it has it. Data per
family say how it is encoded.

Sources: AMD, "RDNA3 Instruction Set Architecture" (2023), by its section numbers; encodings are as
LLVM's assembler writes them. All waves of as many groups as fit run together; those at the least
address go first. A register that a load has yet to fill must not be used before s_waitcnt says so.
"""
