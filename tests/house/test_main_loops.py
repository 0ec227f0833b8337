"""The Hopper skeleton has one producer, one epilogue mechanism, and at most three main-loop bodies.

A main-loop body is a class that issues products: its methods call `commit_group` (of WGMMAs) or `mma_bf16`.
"""

import ast

from source import ROOT, sources

BODIES_AT_MOST = 3


def classes_that_call(name):
    """(file, class) of every class whose methods call something named `name`."""
    found = []
    for path in sources():
        if path.parts[0] != "packages":
            continue
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(call, ast.Call)
                and name in (getattr(call.func, "attr", None), getattr(call.func, "id", None))
                for call in ast.walk(node)
            ):
                found.append((path.as_posix(), node.name))
    return found


def test_main_loop_bodies_are_few_and_in_the_library():
    bodies = classes_that_call("commit_group") + classes_that_call("mma_bf16")
    assert 1 <= len(bodies) <= BODIES_AT_MOST, bodies
    assert all("cudnn_core/hopper/" in path for path, _ in bodies), bodies


def test_one_kernel_entry():
    """Roles are given to warpgroups in one place."""
    assert len(classes_that_call("setmaxregister_increase")) == 1
