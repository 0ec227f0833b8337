"""Compares the stub beside a package's `__init__.py` with the package's table of lazy names.

May import the standard library only.
"""

import ast
from pathlib import Path


def stub_names(package):
    """Names that the package's `__init__.pyi` imports for its users."""
    stub = Path(package.__file__).with_suffix(".pyi")
    return {
        alias.asname
        for node in ast.parse(stub.read_text()).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
