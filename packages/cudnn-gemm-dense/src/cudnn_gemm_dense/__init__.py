"""Dense GEMM fusions: amax (built), SwiGLU, sReLU and dsReLU (coming)."""
