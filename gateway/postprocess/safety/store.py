"""The policies of a deployment: one file for all, or a directory with a file for each tenant; read again on change.

In a directory `default.toml` holds for tenants without a file of their own. A file that is faulty when it changes
leaves the policy that was read before at work, and `faults` says so until it is mended.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from gateway.at_rest import AtRest, Stamp, stamp_of
from gateway.postprocess.safety.policy import SafetyPolicy, SafetyPolicyError

logger = logging.getLogger(__name__)

DEFAULT = "default"

Stamps = tuple[tuple[str, Stamp], ...]


class Policies:
    """All policies, by tenant. Raises SafetyPolicyError when one cannot be read at the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._policies: dict[str, SafetyPolicy] = {}
        self._stamps: dict[str, Stamps] = {}
        self._key = b""
        self._at_rest = AtRest()
        self.faults: dict[str, str] = {}
        self.num_reloads = 0
        for name, file in self._files().items():
            self._take(name, file)
        if not self._policies:
            raise SafetyPolicyError(f"{path}: holds no policy; name it {DEFAULT}.toml, or by its tenant, TENANT.toml")

    @property
    def names(self) -> tuple[str, ...]:
        """Return whose policies there are."""
        return tuple(self._policies)

    def of(self, tenant: str) -> SafetyPolicy | None:
        """Return the policy of a tenant, if there is one."""
        return self._policies.get(tenant) or self._policies.get(DEFAULT)

    def name_matches_with(self, key: bytes) -> None:
        """Let policies name matches in the audit log by a keyed hash: without the key nobody can try values out."""
        self._key = key
        for policy in self._policies.values():
            policy.digest = self._digest

    def refresh(self) -> None:
        """Read again what changed. May block: not for the event loop."""
        files = self._files()
        for name, file in files.items():
            stamp = self._stamp(name, file)
            if not self._at_rest(name, stamp) or stamp == self._stamps.get(name):
                continue
            try:
                self._take(name, file)
                self.num_reloads += 1
                self.faults.pop(name, None)
                logger.info("safety policy %s: read again", file)
            except SafetyPolicyError as error:
                self._stamps[name] = self._stamp(name, file)
                self._fault(name, str(error))
        for name in set(self._policies) - set(files):
            if not self._at_rest(name, ()):
                continue
            if self._path.is_dir():
                del self._policies[name], self._stamps[name]
                logger.info("safety policy of tenant %r: gone", name)
            else:
                self._fault(name, f"{self._path}: No such file")

    def _fault(self, name: str, message: str) -> None:
        if self.faults.get(name) != message:
            logger.error("safety policy not read, the one before stays at work: %s", message)
        self.faults[name] = message

    def _files(self) -> dict[str, Path]:
        if self._path.is_dir():
            return {file.stem: file for file in sorted(self._path.glob("*.toml"))}
        return {DEFAULT: self._path} if self._path.exists() or not self._policies else {}

    def _take(self, name: str, file: Path) -> None:
        stamp = self._stamp(name, file)  # before reading: a change in between is seen the next time
        policy = SafetyPolicy.load(file)
        policy.digest = self._digest if self._key else None
        self._policies[name] = policy
        extra = self._stamp(name, file)
        self._stamps[name] = stamp if len(stamp) == len(extra) else extra

    def _stamp(self, name: str, file: Path) -> Stamps:
        named = self._policies[name].files if name in self._policies else ()
        return tuple((str(path), stamp_of(path)) for path in (file, *named))

    def _digest(self, text: str) -> str:
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=16).hexdigest()
