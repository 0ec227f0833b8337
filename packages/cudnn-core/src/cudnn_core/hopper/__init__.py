"""Device code for Hopper (sm_90a): one GEMM skeleton, and what plugs into it.

Imports nothing, so that tile.py stays usable where the DSL is not installed. The
pieces of a fused GEMM, each in a module of its own:

    tile         TileConfig: the shape of the persistent kernel
    rules        which tile a plain product takes
    schedule     DenseSchedule: which tile comes next
    stream       StreamSchedule: the tiles of the last round shared out along K
    rings        stages of shared memory, and who waits for whom
    matrix       MatrixOperand: an operand that the tensor core reads as it is
    plain        PlainBody: the main loop of two such operands
    wgmma        the tensor core's products of every format
    operand      BlockScaledOperand: global memory to shared memory to registers
    decode       the exact expansion of elements and scales to BF16
    decoded      DecodedBody: the main loop when B is decoded in registers
    expand       Expand, Expansion: rewrite operands ahead of the main loop
    feed         Feed, FedBody: or beside it
    workspace    sizes of scratch memory
    epilogue     Epilogue and its resources: what happens to the sums
    convert      conversions of quantization, bit-exact
    gemm         HopperGemm: the skeleton that runs them
    arguments    symbolic tensors to compile with
"""
