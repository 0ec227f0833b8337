"""The repository as a whole: the lock is current, and no committed file names a foreign address."""

import re
import shutil
import subprocess
import tomllib

import pytest
from source import ROOT, tracked

EXPORT = (
    "uv",
    "export",
    "--quiet",
    "--no-header",
    "--no-emit-workspace",
    "--all-groups",
    "--all-extras",
)

# Put together here so that this file does not name what it forbids.
FORBIDDEN = {
    "a package registry": re.compile("|".join(("pypi" + r"\.org", "python" + "hosted"))),
    "a path of one machine": re.compile(r"(?<![\w.])/(?:" + "work|root|home|Users)" + r"/\w"),
}


def pyprojects():
    return [path for path in tracked() if path.name == "pyproject.toml"]


def test_lock_is_what_a_fresh_resolution_gives(tmp_path):
    """In an empty folder: an old uv.lock would be preferred and hide a stale export."""
    for path in pyprojects():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    subprocess.run(["uv", "lock", "--quiet"], cwd=tmp_path, check=True)
    fresh = subprocess.run(EXPORT, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert fresh == (ROOT / "requirements.lock").read_text(), (
        f"requirements.lock is stale: rm uv.lock && {' '.join(EXPORT)} > requirements.lock"
    )


def test_packages_agree_on_version_and_pin_siblings_to_it():
    projects = [tomllib.loads((ROOT / path).read_text())["project"] for path in pyprojects()]
    names = {project["name"] for project in projects}
    (version,) = {project["version"] for project in projects}
    for project in projects:
        extras = project.get("optional-dependencies", {}).values()
        for requirement in (*project.get("dependencies", ()), *(r for e in extras for r in e)):
            name = re.match(r"[\w-]+", requirement).group()
            if name in names:
                assert requirement.endswith(f"=={version}"), requirement


def test_every_wheel_carries_the_license():
    licenses = {(ROOT / path.parent / "LICENSE").read_text() for path in pyprojects()}
    assert len(licenses) == 1
    for path in pyprojects():
        assert tomllib.loads((ROOT / path).read_text())["project"]["license-files"] == ["LICENSE"]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_committed_text_names(what):
    named = []
    for path in tracked():
        try:
            text = (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue
        named += [f"{path}: {found.group()}" for found in FORBIDDEN[what].finditer(text)]
    assert named == []


def test_generated_lock_is_not_committed():
    assert not [path for path in tracked() if path.name == "uv.lock"]
