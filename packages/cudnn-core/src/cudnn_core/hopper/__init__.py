"""Device code for Hopper (sm_90a): one GEMM skeleton, and what plugs into it.

Imports nothing, so that config.py and tile.py stay usable where the DSL is not installed. The
pieces of a fused GEMM, each in a module of its own:

    tile         TileConfig: the shape of the persistent kernel
    schedule     DenseSchedule: which tile comes next
    operand      BlockScaledOperand: global memory to shared memory to registers
    decode       the exact expansion of elements and scales to BF16
    decoded      DecodedBody: the main loop when both sides are decoded
    epilogue     Epilogue, TileStore, AmaxReduce: what happens to the sums
    gemm         HopperGemm: the skeleton that runs them
    config       what is fixed at compile time, free of the DSL
    block_scaled a composition: block-scaled operands, store and max |C|
"""
