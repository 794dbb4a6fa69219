"""The first command on a bare machine says in one sentence what is missing, and a failed start can be repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "deploy" / "environment.py"
FOUND = (
    "import importlib.util as u; found = u.find_spec; u.find_spec = lambda name: name != 'ensurepip' and found(name)"
)

BACKEND = """
import os
def prepare_metadata_for_build_editable(directory, config=None):
    os.mkdir(directory + "/a-1.dist-info")
    with open(directory + "/a-1.dist-info/METADATA", "w") as file:
        file.write("Metadata-Version: 2.1\\nName: a\\nVersion: 1\\nRequires-Dist: never-published-headrace-part\\n")
    return "a-1.dist-info"
def build_editable(directory, config=None, metadata=None):
    raise SystemExit(1)
"""


def run(
    folder: Path, *, before: str = "", project: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    start = (
        f"import runpy, sys; {before or 'pass'}; sys.argv = ['environment.py', {str(folder)!r}, 'constraints.txt']; "
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", start],
        cwd=project,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that needs one package from the registry, built without one."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "constraints.txt").write_text("")
    (folder / "pyproject.toml").write_text(
        "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    )
    (folder / "backend.py").write_text(BACKEND)
    return folder


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment that is there already: this one, since nothing gets as far as being installed."""
    folder = tmp_path / "venv"
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "pip"):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    return folder


def test_an_old_python_is_told_what_is_needed(tmp_path: Path) -> None:
    done = run(tmp_path / "venv", before="sys.version_info = (3, 9, 2)")
    assert done.returncode == 1
    assert done.stderr.startswith("headrace: Headrace needs Python 3.11 or newer")
    assert len(done.stderr.splitlines()) == 1


def test_a_python_without_venv_is_told_how_to_get_it(tmp_path: Path) -> None:
    done = run(tmp_path / "venv", before=FOUND)
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "venv").exists()


def test_an_environment_that_cannot_be_made_does_not_stay_half_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run(tmp_path / "file" / "venv")
    assert done.returncode == 1
    assert "could not be made" in done.stderr


def test_no_network_is_one_sentence(venv: Path, project: Path) -> None:
    done = run(
        venv,
        project=project,
        PIP_CONFIG_FILE=os.devnull,
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_FIND_LINKS="",
        PIP_RETRIES="1",
    )
    assert done.returncode == 1
    assert done.stderr.startswith("headrace: The package registry cannot be reached")
    assert len(done.stderr.splitlines()) == 1


def test_a_package_the_index_lacks_is_named(tmp_path: Path, venv: Path, project: Path) -> None:
    (tmp_path / "index").mkdir()
    done = run(
        venv,
        project=project,
        PIP_CONFIG_FILE=os.devnull,
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS=str(tmp_path / "index"),
    )
    assert done.returncode == 1
    assert "never-published-headrace-part" in done.stderr
    assert "PYTHON=" in done.stderr
