"""What the pages say about the project's own tables, pictures and commands is true."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cudnn

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def tool(name):
    """The module of a script under tools/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tools/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["draw_scale_layout", "write_environment"])
def test_generated_file_is_what_its_script_writes(name):
    script = tool(name)
    fresh = script.draw() if name == "draw_scale_layout" else script.page()
    assert script.TARGET.read_text() == fresh, f"run: uv run python tools/{name}.py"


def test_scale_layout_picture_says_where_pack_scales_puts_a_scale():
    drawing = tool("draw_scale_layout")
    plain = np.zeros((300, 12), dtype=np.uint8)
    plain[drawing.ROW + 128, drawing.BLOCK + 4] = 1
    (byte,) = np.flatnonzero(cudnn.pack_scales(plain, scale_layout="physical").reshape(-1))
    assert byte == drawing.offset(drawing.ROW + 128, drawing.BLOCK + 4, 3)


def test_every_option_that_the_page_of_commands_names_exists():
    sections = re.split(r"^## `cudnn (\w+)`$", (ROOT / "docs/cli.md").read_text(), flags=re.M)[1:]
    assert {"demo", "compile", "bench"} <= set(sections[::2])
    for command, text in zip(sections[::2], sections[1::2], strict=True):
        shown = subprocess.run(
            [sys.executable, "-m", "cudnn", command, "--help"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "200"},
        ).stdout
        # What stands before `cudnn` on a command line is another program's.
        own = re.sub(r"uv run [^`\n]*?(?=cudnn)", "", text)
        named = set(re.findall(r"(?<![\w-])--[a-z]+", own))
        assert named <= set(re.findall(r"--[a-z]+", shown)), command


def test_every_command_that_a_page_names_exists():
    named = set()
    for page in GUIDES:
        text = page.read_text()
        code = re.findall(r"`([^`\n]+)`", text)
        code = "\n".join([*code, *re.findall(r"^```sh\n(.*?)^```", text, flags=re.M | re.S)])
        named.update(re.findall(r"(?:^|uv run |python -m )cudnn (\w+)", code, flags=re.M))
    assert {"demo", "doctor", "compile", "cache", "bench"} <= named
    for command in named:
        shown = subprocess.run(
            [sys.executable, "-m", "cudnn", command, "--help"], capture_output=True, text=True
        )
        assert shown.returncode == 0, f"cudnn {command}: {shown.stderr}"
