"""Projection + RoPE + MXFP8."""
