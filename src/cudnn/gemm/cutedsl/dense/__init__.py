"""`cudnn.gemm.cutedsl.dense`: one module for each dense operation, as upstream has them."""
