"""Helpers that the packages' tests share; no part of the public API."""
