"""Contracts, engines, formats and the Hopper device-code library of the cudnn kernels."""
