"""What the pages say about the project's own tables, pictures and commands is true."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cudnn
from cudnn_core.env import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
GUIDES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def spelled(default):
    if isinstance(default, bool):
        return "on" if default else "off"
    return "unset" if default is None else str(default)


def test_environment_page_is_the_table():
    rows = [
        f"| `{v.name}` | {spelled(v.default)} | {v.read} | {v.effect} |" for v in VARIABLES.values()
    ]
    text = (ROOT / "docs/environment.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("| `")] == rows


@pytest.fixture
def drawing():
    spec = importlib.util.spec_from_file_location("drawing", ROOT / "tools/draw_scale_layout.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_scale_layout_picture_is_what_its_script_draws(drawing):
    assert drawing.TARGET.read_text() == drawing.draw()


def test_scale_layout_picture_says_where_pack_scales_puts_a_scale(drawing):
    plain = np.zeros((300, 12), dtype=np.uint8)
    plain[drawing.ROW + 128, drawing.BLOCK + 4] = 1
    (byte,) = np.flatnonzero(cudnn.pack_scales(plain, scale_layout="physical").reshape(-1))
    assert byte == drawing.offset(drawing.ROW + 128, drawing.BLOCK + 4, 3)


def test_every_command_that_a_page_names_exists():
    named = set()
    for page in GUIDES:
        text = page.read_text()
        code = re.findall(r"`([^`\n]+)`", text)
        code = "\n".join([*code, *re.findall(r"^```sh\n(.*?)^```", text, flags=re.M | re.S)])
        named.update(re.findall(r"(?:^|uv run |python -m )cudnn (\w+)", code, flags=re.M))
    assert {"demo", "doctor", "compile", "cache"} <= named
    for command in named:
        shown = subprocess.run(
            [sys.executable, "-m", "cudnn", command, "--help"], capture_output=True, text=True
        )
        assert shown.returncode == 0, f"cudnn {command}: {shown.stderr}"
