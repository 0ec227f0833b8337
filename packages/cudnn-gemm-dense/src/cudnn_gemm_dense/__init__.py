"""Dense block-scaled GEMM fusions: amax, SwiGLU, sReLU, dsReLU."""
