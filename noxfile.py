"""Every check of the project, each in an environment of its own.

`nox` runs what needs no GPU; `nox -s NAME` runs one session and `nox -l` lists them. Arguments
after `--` go to pytest. Environments are made by uv from the workspace's own resolution, so a
package's tests see that package, cudnn-core and the groups named here, and nothing else.
"""

import os
import shutil
from pathlib import Path

import nox

ROOT = Path(__file__).parent
FAMILIES = ("gemm-dense", "gemm-grouped", "proj-rope", "causal-conv", "attention")
PACKAGES = ("cudnn-core", *(f"cudnn-{family}" for family in FAMILIES))
FRAMEWORKS = ("torch", "jax")
CPU = "not compile and not compile_all and not gpu and not host_time"

nox.options.default_venv_backend = "uv"
nox.options.error_on_missing_interpreters = True
nox.options.sessions = (
    "lint",
    "docs",
    "test-core-numpy",
    "test-core",
    "test-dense",
    "test-grouped",
    "test-proj-rope",
    "test-causal-conv",
    "test-attention",
    "test-meta",
    "wheels",
)


def sync(session, *selection, groups=()):
    """Install exactly `selection` and the dependency groups into the session's environment."""
    arguments = [part for group in groups for part in ("--group", group)]
    session.run_install(
        "uv",
        "sync",
        "--quiet",
        "--python",
        session.virtualenv.location,
        *selection,
        *arguments,
        env={"UV_PROJECT_ENVIRONMENT": session.virtualenv.location},
        external=True,
    )


def pytest(session, *arguments):
    session.run("python", "-m", "pytest", "--timeout=900", *arguments, *session.posargs)


def test(session, package, *, extras=(), groups=()):
    options = [f"--extra={extra}" for extra in extras]
    sync(session, "--package", package, *options, groups=("test", *groups))
    pytest(session, f"packages/{package}/tests")


@nox.session(name="test-core-numpy")
def test_core_numpy(session):
    """cudnn-core with neither framework installed: the NumPy engine stands alone."""
    test(session, "cudnn-core", extras=("cli",))


@nox.session(name="test-core")
def test_core(session):
    """cudnn-core with PyTorch, JAX and the implementations its formats are checked against."""
    test(session, "cudnn-core", extras=("cli", "plot"), groups=(*FRAMEWORKS, "oracles"))


@nox.session(name="test-dense")
def test_dense(session):
    """cudnn-gemm-dense, with both frameworks."""
    test(session, "cudnn-gemm-dense", groups=FRAMEWORKS)


@nox.session(name="test-grouped")
def test_grouped(session):
    """cudnn-gemm-grouped."""
    test(session, "cudnn-gemm-grouped")


@nox.session(name="test-proj-rope")
def test_proj_rope(session):
    """cudnn-proj-rope."""
    test(session, "cudnn-proj-rope")


@nox.session(name="test-causal-conv")
def test_causal_conv(session):
    """cudnn-causal-conv, with both frameworks."""
    test(session, "cudnn-causal-conv", groups=FRAMEWORKS)


@nox.session(name="test-attention")
def test_attention(session):
    """cudnn-attention."""
    test(session, "cudnn-attention")


@nox.session(name="test-meta")
def test_meta(session):
    """The meta-package: imports, names, and the code blocks of the documentation."""
    sync(session, "--package", "cudnn", "--extra=plot", groups=("test", *FRAMEWORKS))
    pytest(session, "tests", "--ignore=tests/house")


@nox.session
def lint(session):
    """Formatting, and the house rules: layers, duplication, sizes, guides, the lock."""
    sync(session, "--no-install-workspace", groups=("lint", "test"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    pytest(session, "tests/house")


@nox.session
def docs(session):
    """The documentation; a warning is an error."""
    sync(session, "--no-install-workspace", groups=("docs",))
    # The theme announces its successor at every build; that is news, not a warning about a page.
    quiet = {"NO_MKDOCS_2_WARNING": "1"}
    session.run("mkdocs", "build", "--strict", "--site-dir", str(ROOT / "site"), env=quiet)


@nox.session
def wheels(session):
    """Build every package; test each from its wheel, away from the repository."""
    folder = Path(session.create_tmp()).resolve()
    shutil.rmtree(folder)
    dist = folder / "dist"
    session.run(
        "uv", "build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(dist), external=True
    )
    for package in PACKAGES:
        siblings = {"cudnn-core", package}
        test_wheel(session, folder, dist, package, siblings, ROOT / "packages" / package / "tests")
    test_wheel(session, folder, dist, "cudnn", {"cudnn", *PACKAGES}, ROOT / "tests")


def test_wheel(session, folder, dist, package, siblings, tests):
    """Run `tests` with nothing but the wheels of `siblings` and their requirements installed."""
    home = folder / package
    venv = home / "venv"
    shutil.copytree(
        tests, home / "tests", ignore=shutil.ignore_patterns("__pycache__", "house", "docs")
    )
    stems = {name.replace("-", "_") for name in siblings}
    found = [wheel for wheel in dist.glob("*.whl") if wheel.name.split("-")[0] in stems]
    if len(found) != len(siblings):
        session.error(f"expected one wheel of each of {sorted(siblings)}, found {found}")
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    session.run("uv", "venv", "--python", session.virtualenv.location, str(venv), external=True)
    # Versions come from the committed export; the groups only say which tools a test run needs.
    session.run(
        *("uv", "pip", "install", "--quiet", "--python", str(python)),
        *("--constraints", str(ROOT / "requirements.lock"), "--group", "test"),
        *(
            f"{wheel}[cli]" if wheel.name.startswith("cudnn_core-") else str(wheel)
            for wheel in found
        ),
        external=True,
    )
    with session.chdir(home):
        session.run(
            *(str(python), "-P", "-m", "pytest", "tests", "-m", CPU, "--timeout=900"),
            *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(home)),
            *("-p", "no:cacheprovider"),
            external=True,
        )


@nox.session(default=False)
def lowest(session):
    """The oldest versions that the packages claim to work with."""
    packages = ("packages/cudnn-core[cli]", "packages/cudnn-gemm-dense")
    session.install("--resolution", "lowest-direct", "--group", "test", *packages)
    pytest(session, "packages/cudnn-core/tests", "packages/cudnn-gemm-dense/tests")


@nox.session(name="bench", default=False)
def bench(session):
    """Every benchmark on this machine's Hopper GPU; arguments after `--` go to `cudnn bench`."""
    sync(session, "--all-packages", "--extra=plot", groups=FRAMEWORKS)
    for family in ("formats", "dense", "causal-conv"):
        session.run("cudnn", "bench", family, *session.posargs)


@nox.session(name="compile-all", default=False)
def compile_all(session):
    """Every kernel variant compiled for sm_90a, the part that CI leaves out included."""
    sync(session, "--all-packages", groups=("test", *FRAMEWORKS))
    pytest(session, "packages", "-m", "compile or compile_all")
