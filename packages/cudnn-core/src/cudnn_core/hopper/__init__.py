"""Device code for Hopper (sm_90a): one GEMM skeleton, and what plugs into it.

Imports nothing, so that tile.py stays usable where the DSL is not installed. The
pieces of a fused GEMM, each in a module of its own:

    tile         TileConfig: the shape of the persistent kernel
    schedule     DenseSchedule: which tile comes next
    operand      BlockScaledOperand: global memory to shared memory to registers
    decode       the exact expansion of elements and scales to BF16
    decoded      DecodedBody: the main loop when both sides are decoded
    epilogue     Epilogue, TileStore, AmaxReduce: what happens to the sums
    gemm         HopperGemm: the skeleton that runs them
    arguments    symbolic tensors to compile with
"""
