"""Benchmarks: correctness first, then ours and the peers in turns, in one process.

Families describe cases in the terms of `protocol`; the command line runs them. Nothing here is imported by operations.
"""
