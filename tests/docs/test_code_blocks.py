"""The Python blocks of README and docs run, and print what their comments say.

Blocks of a page that need the same framework share one namespace and run in order; a block needs
what it imports. `<!-- needs: gpu -->` before a block puts it in the gpu tier. A comment after a
`print(...)` is what it must print.
"""

import contextlib
import io
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?P<gpu><!-- needs: gpu -->\n)?^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```$",
    flags=re.M | re.S,
)
EXPECTED = re.compile(r"^ *print\(.*\)  # (.*)$", flags=re.M)


def blocks(page):
    """(need, code) of every Python block: need is "numpy", "torch", "jax" or "gpu"."""
    for found in BLOCK.finditer(page.read_text()):
        code = textwrap.dedent(found["code"])
        frameworks = [
            name for name in ("torch", "jax") if re.search(rf"^import {name}", code, re.M)
        ]
        yield "gpu" if found["gpu"] else (frameworks or ["numpy"])[0], code


CASES = [
    pytest.param(
        page,
        need,
        id=f"{page.relative_to(ROOT)}-{need}",
        marks=[pytest.mark.gpu] if need == "gpu" else [],
    )
    for page in PAGES
    for need in sorted({need for need, _ in blocks(page)})
]


@pytest.mark.parametrize(("page", "need"), CASES)
def test_blocks_run_and_print_what_they_say(page, need):
    if need != "numpy":
        pytest.importorskip("torch" if need == "gpu" else need)
    namespace = {"__name__": "page"}
    for code in (code for other, code in blocks(page) if other == need):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), namespace)
        assert printed.getvalue().splitlines() == EXPECTED.findall(code)


def test_every_page_with_python_is_covered():
    fences = sum(page.read_text().count("```python") for page in PAGES)
    assert fences == sum(len(list(blocks(page))) for page in PAGES) >= 15
