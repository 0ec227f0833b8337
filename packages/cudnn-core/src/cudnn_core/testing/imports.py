"""Checks on what an import costs and drags in, run in fresh interpreters.

May import the standard library only.
"""

import statistics
import subprocess
import sys
import time

# What `import cudnn` must leave alone: each costs more than the whole import may.
HEAVY = ("torch", "jax", "jaxlib", "numpy", "ml_dtypes", "tvm_ffi", "cutlass", "triton", "rich")


def run(code):
    """The standard output of `code` in a fresh interpreter; fails with its error output."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def heavy_after(statement):
    """Which of HEAVY are loaded after `statement` in a fresh interpreter."""
    code = f"import sys; {statement}; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    return run(code).split()


def import_seconds(module, repeats=7):
    """Median time that `import module` adds to a bare interpreter.

    Both are started alternately, so a busy machine slows both alike.
    """

    def start(code):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - begin

    start(f"import {module}")  # writes the byte code once
    pairs = [(start(f"import {module}"), start("pass")) for _ in range(repeats)]
    return statistics.median(loaded - bare for loaded, bare in pairs)
