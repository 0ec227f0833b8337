"""Fused low-precision GPU kernels for transformers."""
