"""Grouped (MoE) GEMM fusions."""
