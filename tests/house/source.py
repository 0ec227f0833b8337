"""What the house tests read: the tracked source files and what they import.

May import the standard library only: these tests run where nothing of the project is installed.
"""

import ast
import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@functools.cache
def tracked():
    """Every file of the repository that git tracks or would track, relative to the root."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for path in map(Path, listing.splitlines()) if (ROOT / path).is_file()]


def sources():
    """Python files that are shipped: the packages' and the meta-package's own."""
    return [path for path in tracked() if path.suffix == ".py" and "src" in path.parts]


def module_name(path):
    """packages/x/src/x_y/a/b.py -> "x_y.a.b"; a package's __init__.py is the package."""
    parts = path.with_suffix("").parts[path.parts.index("src") + 1 :]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path):
    """Dotted names of everything `path` imports, inside functions too, relative ones resolved.

    `from a import b` counts as both `a` and `a.b`, since b may be a module.
    """
    tree = ast.parse((ROOT / path).read_text(), filename=str(path))
    package = module_name(path).split(".")
    if path.name != "__init__.py":
        package = package[:-1]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            found.add(origin)
            found.update(f"{origin}.{alias.name}" for alias in node.names)
    return found
