"""Doors: how a framework's tracer meets an Op. Each module knows one framework and any contract."""
