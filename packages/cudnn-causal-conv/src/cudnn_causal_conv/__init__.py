"""Causal conv1d and its decode step."""
