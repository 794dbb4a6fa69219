"""Settings of a service: one frozen Struct, checked when it is made, passed down and never written to.

`wire.environment` fills it from variables and flags.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from wire.adapters import AdapterPlace, places
from wire.errors import StartError

FOLDERS = ("state_dir", "model_dir")
_HASH_SLOTS = 16_384  # of a Redis Cluster: more partitions than these are spread over no more servers


class SettingsError(StartError):
    """A setting is unknown, malformed or out of range; the message names it."""


def default_state_dir() -> str:
    """Return where the bus keeps its append-only file and sockets (XDG state directory)."""
    return _at_home("state_dir", "XDG_STATE_HOME", ".local/state") + "/headrace"


def default_model_dir() -> str:
    """Return where model directories live (XDG data directory)."""
    return _at_home("model_dir", "XDG_DATA_HOME", ".local/share") + "/headrace/models"


def _at_home(name: str, variable: str, place: str) -> str:
    return os.environ.get(variable) or expanded(name, f"~/{place}")


def expanded(name: str, path: str) -> str:
    """Return the path of a setting with `~` as this user's home. Raises SettingsError where there is none."""
    try:
        return str(Path(path).expanduser())
    except RuntimeError:
        raise SettingsError(f"{name} must be set to a folder, as this user has no home directory") from None


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What every service knows.

    `models` are the names served, each a directory below `model_dir`; `adapters` are LoRA adapters beside them, entries
    `NAME=DIR` (of the first model) or `NAME@MODEL=DIR`. With an `adapter_dir` adapters may come and go at run
    time: their directories lie below it, on replicas' machines. `partitions` and `block_size` are fixed for a
    deployment: all services must agree on them. `drain_s` bounds how long a service finishes work after SIGTERM.
    `alive_file` is touched every two seconds while the event loop turns: a liveness probe looks at its age.
    `ready_file` is there from when the process takes work (a replica: when its model is loaded) until it has ended.
    `metrics_port` above 0 serves Prometheus metrics of the process at `metrics_host`; `process_name` is what it is
    called there and in logs, its role if empty. For `awake_ms` after a request came in a process looks for news instead
    of sleeping: for machines with cores to spare (None: `headrace up` says 10 on one with a GPU; else 0).
    """

    redis_url: str = ""
    partitions: int = 1
    state_dir: str = msgspec.field(default_factory=default_state_dir)
    model_dir: str = msgspec.field(default_factory=default_model_dir)
    models: tuple[str, ...] = ("smollm2-135m-instruct",)
    block_size: int = 16
    drain_s: float = 20.0
    log_level: str = "info"
    alive_file: str = ""
    ready_file: str = ""
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    process_name: str = ""
    awake_ms: float | None = None
    adapters: tuple[str, ...] = ()
    adapter_dir: str = ""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise SettingsError(f"{name} must be a finite number, not {value}")
            if isinstance(value, int):
                self._check_range(name, most=_most(name))
        self._check_range("partitions", least=1, most=_HASH_SLOTS)
        for name in FOLDERS:
            if not getattr(self, name):
                raise SettingsError(f"{name} must be the path of a folder, not empty")
        self._check_host("metrics_host")
        self._check_range("drain_s", least=0)
        self._check_range("metrics_port", least=0, most=65_535)
        if self.awake_ms is not None:
            self._check_range("awake_ms", least=0, most=1_000)
        if self.log_level.upper() not in logging.getLevelNamesMapping():
            raise SettingsError(f"log_level must be debug, info, warning, error or critical, not {self.log_level!r}")
        if self.block_size < 1 or self.block_size & (self.block_size - 1):
            raise SettingsError(f"block_size must be a power of two, not {self.block_size}")
        self._check_models()

    def _check_models(self) -> None:
        if not self.models or len(set(self.models)) < len(self.models):
            raise SettingsError("models must name at least one model, and each of them once")
        for model in self.models:
            if "/" in model or model in (".", ".."):
                raise SettingsError(f"models: {model!r} is a path; a model is named by its directory below model_dir")
        try:
            places(self.adapters, self.models)
        except (ValueError, RuntimeError) as error:
            raise SettingsError(f"adapters: {error}") from None

    def _check_host(self, name: str) -> None:
        """Raise SettingsError for a host that would be every address without saying so."""
        if not getattr(self, name).strip():
            raise SettingsError(f"{name} must not be empty; 0.0.0.0 is every address of this machine")

    def _check_range(
        self, *names: str, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
    ) -> None:
        """Raise SettingsError that names the first of these fields whose value lies outside."""
        bounds = {f"above {above:g}": above, f"at least {least:g}": least, f"at most {most:g}": most}
        wanted = " and ".join(text for text, bound in bounds.items() if math.isfinite(bound))
        for name in names:
            value = getattr(self, name)
            if not (value > above and least <= value <= most):
                raise SettingsError(f"{name} must be {wanted}, not {value}")

    @property
    def awake_s(self) -> float:
        """Return for how long a request keeps a process awake."""
        return (self.awake_ms or 0.0) / 1e3

    def model_path(self, model: str) -> Path:
        """Return the directory of a served model."""
        return Path(self.model_dir).expanduser() / model

    def adapters_of(self, model: str) -> list[AdapterPlace]:
        """Return a model's adapters."""
        return [place for place in places(self.adapters, self.models) if place.model == model]

    def streams(self, topic: Callable[[int, str], str]) -> list[str]:
        """Return the streams of a desk that has one for each partition and model."""
        return [topic(partition, model) for partition in range(self.partitions) for model in self.models]


def _most(name: str) -> int:
    """Return the largest value of a whole number: what ends in C code are bytes in 64 bits, counts in 32."""
    if name.endswith("_bytes"):
        return 2**63 - 1
    return 65_536 if name.endswith("_concurrency") else 2**31 - 1
