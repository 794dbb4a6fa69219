"""The files of the page as they are kept: read and compressed once, with an entity tag for each coding.

Tags and the page's version are of the content alone: they are the same at every edge, whatever times its files have.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

_WORTHWHILE = 0.9  # of its size: fonts and most images are compressed already
_LASTING = frozenset({".css", ".js", ".mjs", ".svg"})
_NAMED = re.compile(rb'(?<==")(?=(?:css|js|vendor)/)')  # where the document names a file that lasts
_REFUSED = re.compile(r"q=0(\.0*)?")


class PageFile(NamedTuple):
    """One file; `zipped` is empty where compressing does not help."""

    digest: str
    plain: bytes
    zipped: bytes

    @classmethod
    def of(cls, plain: bytes) -> PageFile:
        """Digest and compress, up to 20 ms of processor time."""
        zipped = gzip.compress(plain, mtime=0)
        return cls(_digest(plain), plain, zipped if len(zipped) < _WORTHWHILE * len(plain) else b"")

    def headers(self, *, is_zipped: bool) -> dict[str, str]:
        """Return what tells a coding apart."""
        if not self.zipped:
            return {"etag": f'"{self.digest}"'}
        if not is_zipped:
            return {"etag": f'"{self.digest}"', "vary": "Accept-Encoding"}
        return {"etag": f'"{self.digest}-gzip"', "vary": "Accept-Encoding", "content-encoding": "gzip"}


class PageFiles:
    """The files of a folder. What has changed is read again; the document names the others under their version."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)
        self.index = str(self._root / "index.html")
        self._files: dict[str, PageFile] = {}
        self._stamps: dict[str, object] = {}
        self._version: tuple[str, dict[str, str]] = ("", {})  # and the digests that made it

    def __getitem__(self, path: str) -> PageFile:
        return self._files[path]

    def read(self, path: str, found: os.stat_result) -> None:
        """Have a file at hand, as it is now."""
        # When it was last changed tells more than its time, which packages set to the same one at every build.
        stamp: object = found.st_ctime_ns, found.st_mtime_ns, found.st_size
        if path == self.index:
            stamp = stamp, self._read_version()
        if self._stamps.get(path) == stamp:
            return
        plain = Path(path).read_bytes()
        if path == self.index:
            plain = _NAMED.sub(f"~{self._version[0]}/".encode(), plain)
        self._files[path] = PageFile.of(plain)
        self._stamps[path] = stamp

    def lasts(self, version: str, path: str) -> bool:
        """Return whether the file at `path` is the one of this version, which no other will ever be."""
        current, digests = self._version
        file = self._files.get(str(self._root / path))
        return file is not None and version == current and digests.get(path) == file.digest

    def _read_version(self) -> str:
        digests = {}
        for path in sorted(self._root.rglob("*")):
            if path.suffix in _LASTING:
                self.read(str(path), path.stat())
                digests[path.relative_to(self._root).as_posix()] = self._files[str(path)].digest
        self._version = _digest(repr(digests).encode()), digests
        return self._version[0]


def takes_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding header takes gzip."""
    parts = (part.partition(";") for part in accepted.lower().replace(" ", "").split(","))
    weights = {coding: weight for coding, _, weight in parts}
    return "gzip" in weights and not _REFUSED.fullmatch(weights["gzip"])


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()
