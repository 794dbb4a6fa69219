"""A model from the Hugging Face hub: a repository in safetensors form, or one of its .gguf files (all parts of it).

Files stay in the hub client's own cache, which resumes broken downloads; the model directory links to them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TypeVar

from headrace.pull.errors import PullError
from headrace.pull.mmproj import NONE, Tell, candidates, fitting
from headrace.pull.model_directory import WANTED, build, from_gguf
from model_svc.weights.gguf_parts import part_names

_UNWANTED = ["consolidated*", "original/*", "*/*.safetensors"]
_NEEDED = ("config.json", "tokenizer.json")

T = TypeVar("T")


def from_repository(repo: str, directory: Path) -> Path:
    """Make `directory` from a hub repository `owner/name`. Raises PullError."""

    def download() -> str:
        from huggingface_hub import snapshot_download  # heavy, and needed by few commands

        return snapshot_download(repo, allow_patterns=list(WANTED), ignore_patterns=_UNWANTED)

    snapshot = Path(_explained(repo, download))
    for name in _NEEDED:
        if not (snapshot / name).exists():
            raise PullError(f"{repo} has no {name}, so it cannot be served.")
    if not any(snapshot.glob("*.safetensors")):
        raise PullError(
            f"{repo} has no safetensors weights; name one of its GGUF files as {repo}/<file>.gguf if it has any."
        )
    return build(directory, lambda target: _link_all(snapshot, target))


def from_hub_gguf(
    repo: str, file: str, directory: Path, *, pre: str | None = None, mmproj: str | None = None, tell: Tell
) -> Path:
    """Make `directory` from one GGUF file of a repository, or all parts if it is one. Raises PullError.

    `mmproj` names a file on this machine or of the repository; without it one that fits is looked for there.
    """

    def download(name: str, commit: str | None = None) -> Path:
        from huggingface_hub import hf_hub_download

        return Path(_explained(f"{repo}/{name}", lambda: hf_hub_download(repo, name, revision=commit)))

    found = download(file)
    # The folder in the cache is named after the commit; the others must be of the same one.
    commit = found.parents[len(Path(file).parts) - 1].name
    for name in part_names(file):
        if name != file:
            download(name, commit)
    sights = [Path(mmproj)] if mmproj and Path(mmproj).is_file() else []
    if not sights and mmproj != NONE:
        sights = [download(name, commit) for name in ([mmproj] if mmproj else _sights(repo, file, commit))]
    sight = fitting(found, sights, named=mmproj is not None, tell=tell)
    return from_gguf(found, directory, pre=pre, mmproj=sight)


def _sights(repo: str, file: str, commit: str) -> list[str]:
    """Return the name of the mmproj file that is nearest to a file of a repository, if it has any."""

    def names() -> list[str]:
        from huggingface_hub import HfApi

        return list(HfApi().list_repo_files(repo, revision=commit))

    try:
        found = candidates(map(PurePosixPath, _explained(repo, names)))
    except PullError:  # the model itself may be in the client's cache
        return []
    place = PurePosixPath(file).parent
    near = [path for path in found if path.parent == place] or [path for path in found if path.parent in place.parents]
    return [str(path) for path in near[:1]]


def _link_all(snapshot: Path, target: Path) -> None:
    for file in snapshot.rglob("*"):
        if file.is_file():
            place = target / file.relative_to(snapshot)
            place.parent.mkdir(exist_ok=True)
            try:
                os.link(file.resolve(), place)
            except OSError:
                shutil.copyfile(file, place)


def _explained(what: str, download: Callable[[], T]) -> T:
    """Run a hub download; every way it fails becomes one sentence."""
    from huggingface_hub import errors

    try:
        return download()
    except errors.GatedRepoError as error:
        raise PullError(f"{what} is gated: accept its terms on the hub and log in with `hf auth login`.") from error
    except (errors.LocalEntryNotFoundError, ConnectionError, TimeoutError) as error:
        raise PullError(f"The hub cannot be reached to download {what}; check the network.") from error
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError, errors.HFValidationError) as error:
        raise PullError(f"The hub has no model {what} (or it is private; then log in with `hf auth login`).") from error
    except OSError as error:
        raise PullError(f"{what} could not be stored: {error.strerror or error}.") from error
    except Exception as error:  # the client's HTTP library, and so its errors, differ between its versions
        raise PullError(f"{what} could not be downloaded: {error}") from error
