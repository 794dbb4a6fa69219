"""Switch each mechanism off, one after another, and see that its test fails: `make mutations`.

The files beside this one list, area by area, for each mechanism a text in a source file, what stands there when the
mechanism is off, and the tests that must notice. Each mutation runs in a copy of the tree, so that the checkout stays
as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TIMEOUT_S = 600
LEFT_OUT = shutil.ignore_patterns(".venv", ".git", "__pycache__", "*.egg-info", ".*_cache", ".hypothesis")


def load() -> list[dict[str, Any]]:
    """Return the listed mutations."""
    return [one for file in sorted(HERE.glob("*.toml")) for one in tomllib.loads(file.read_text())["mutation"]]


def apply(mutation: dict[str, Any], root: Path) -> str | None:
    """Change the source in a copy; returns what is wrong with the entry, or None."""
    file = root / mutation["file"]
    if not file.exists():
        return f"{mutation['file']} does not exist"
    source = file.read_text()
    if source.count(mutation["find"]) != 1:
        return f"`find` stands {source.count(mutation['find'])} times in {mutation['file']}, not once"
    file.write_text(source.replace(mutation["find"], mutation["replace"]))
    return None


def outcome_of(mutation: dict[str, Any], root: Path) -> str:
    """Run the named tests in a mutated copy: noticed (they fail, or hang), SURVIVED, or BROKEN (none of them ran)."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", *mutation["tests"]]
    environ = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=root, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "noticed"
    if done.returncode not in (0, 1):
        sys.stdout.write(done.stdout[-1500:] + done.stderr[-1500:])
        return "BROKEN"
    return "noticed" if done.returncode else "SURVIVED"


def main(names: list[str]) -> int:
    """Run the mutations whose name contains one of `names` (all without any); returns 1 if one went unnoticed."""
    survivors = []
    for mutation in load():
        if names and not any(name in mutation["name"] for name in names):
            continue
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            root = Path(folder) / "headrace"
            shutil.copytree(ROOT, root, ignore=LEFT_OUT)
            outcome = apply(mutation, root) or outcome_of(mutation, root)
        sys.stdout.write(f"{outcome:<10} {mutation['name']}\n")
        sys.stdout.flush()
        if outcome != "noticed":
            survivors.append(mutation["name"])
    sys.stdout.write(f"{len(survivors)} unnoticed\n")
    return int(bool(survivors))
