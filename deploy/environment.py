"""Make or complete the virtual environment: `python3 deploy/environment.py .venv constraints/cpu.txt [test,check]`.

What `make up` and `make test` run first. It says what is being fetched, and turns what can go wrong on a bare machine
into one sentence. Standard library only, and old Pythons can read it: they get a sentence too.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
UNREACHABLE = ("NewConnectionError", "connection broken", "Temporary failure", "timed out", "ProxyError", "SSLError")


class InstallError(Exception):
    """Why the environment is not complete, in one sentence."""


def main(folder: Path, constraints: str, extras: str = "") -> None:
    """Make the environment and install Headrace into it. Raises InstallError."""
    check_python()
    log = folder / "install.log"
    if any(folder.glob(".serve-*")):  # a stamp of the Makefile: it was complete before
        say(f"bringing {folder} up to date ...")
    else:
        say(f"installing Headrace into {folder} (once; a few minutes, about 2 GB) ...")
    make(folder)
    if pip(folder, ["-c", constraints, "-e", f".[{extras}]" if extras else "."], log):
        raise InstallError(explain(log.read_text(errors="replace"), log))


def check_python() -> None:
    """Raise InstallError if this Python is too old, or lacks what Debian splits off."""
    if sys.version_info < OLDEST:
        raise InstallError(
            f"Headrace needs Python 3.11 or newer, this is {sys.version.split()[0]}; "
            "name another one: PYTHON=/path/to/python3."
        )
    if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
        raise InstallError("Python's venv module is missing; install it (Debian, Ubuntu: apt install python3-venv).")


def make(folder: Path) -> None:
    """Make the environment if it is not there; a half-made one does not stay. Raises InstallError."""
    if (folder / "bin" / "pip").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "venv", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise InstallError(f"{folder} could not be made: {last_line(done.stdout.decode(errors='replace'))}")


def pip(folder: Path, arguments: list[str], log: Path) -> int:
    """Run `pip install`, show what is fetched, keep all of its output in `log`, and return the exit code."""
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    command += ["--progress-bar", "off", *arguments]
    with log.open("wb") as file, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            step = worth_showing(line.decode(errors="replace").strip())
            if step:
                say(f"  {step}")
    return process.returncode


def worth_showing(line: str) -> str:
    """Return what to show of a line of pip's, or nothing: large downloads, and the end."""
    if line.startswith("Downloading ") and line.endswith((" MB)", " GB)")):
        return line.rsplit("/", 1)[-1] if "://" in line else line.replace("Downloading ", "", 1)
    return "unpacking ..." if line.startswith("Installing collected packages") else ""


def explain(text: str, log: Path) -> str:
    """Turn pip's output into one sentence."""
    if "No space left on device" in text:
        return "No space is left on the disk: the environment needs about 2 GB, 8 GB with the libraries for GPUs."
    if any(sign in text for sign in UNREACHABLE):
        return f"The package registry cannot be reached; check the network and pip's settings ({log} has the details)."
    unmatched = [line for line in text.splitlines() if "No matching distribution found for" in line]
    if unmatched:
        version = ".".join(map(str, sys.version_info[:2]))
        what = unmatched[-1].replace("ERROR: ", "")
        return f"{what} and Python {version}; try another Python (PYTHON=python3.12) or another index ({log})."
    return f"pip failed: {last_line(text)} ({log} has the details)"


def last_line(text: str) -> str:
    """Return the last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it gave no reason")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), *sys.argv[2:])
    except InstallError as error:
        sys.exit(f"headrace: {error}")
    except KeyboardInterrupt:
        sys.exit("headrace: stopped; the next run goes on from here")
