"""Settings of a service: one frozen Struct, filled once from defaults, HEADRACE_* environment variables and flags.

A field `max_num_seqs` is read from HEADRACE_MAX_NUM_SEQS and from the flag `--max-num-seqs` (`wire.flags`); flags win.
An unknown HEADRACE_ name is an error, so that a typing slip cannot pass silently; names of other services' fields are
known.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import math
import os
import re
import string
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wire.adapters import AdapterPlace, places
from wire.errors import StartError

ENV_PREFIX = "HEADRACE_"

# Read outside a Settings Struct: by the kernels' dispatch, by tests, and by the supervisor for its children.
OTHER_NAMES = frozenset({"KERNELS", "TEST_MODEL", "DEBUG_KILL_AT", "CACHE_DIR", "SUPERVISOR"})
# Read by compose.yaml alone, in a shell that may run the command line, too.
OTHER_NAMES |= frozenset({"BASE", "BUS_IMAGE", "BUS_MEMORY", "IMAGE", "PASSWORD", "PIP_OPTIONS", "TARGET"})


class SettingsError(StartError):
    """A setting is unknown, malformed or out of range; the message names it."""


def default_state_dir() -> str:
    """Return where the bus keeps its append-only file and sockets (XDG state directory)."""
    return _at_home("state_dir", "XDG_STATE_HOME", ".local/state") + "/headrace"


def default_model_dir() -> str:
    """Return where model directories live (XDG data directory)."""
    return _at_home("model_dir", "XDG_DATA_HOME", ".local/share") + "/headrace/models"


def _at_home(name: str, variable: str, place: str) -> str:
    return os.environ.get(variable) or _expanded(name, f"~/{place}")


def _expanded(name: str, path: str) -> str:
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
        for name in _FOLDERS:
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


S = TypeVar("S", bound=Settings)
_AT = re.compile(r" - at `\$\.(\w+).*`")  # msgspec names the field last
_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
_KINDS |= {int | None: _KINDS[int], float | None: _KINDS[float]}
_NAME = string.ascii_lowercase + "_"
_FOLDERS = ("state_dir", "model_dir")
_HASH_SLOTS = 16_384  # of a Redis Cluster: more partitions than these are spread over no more servers


def _subclasses(cls: type[Settings]) -> set[type[Settings]]:
    return {cls}.union(*(_subclasses(child) for child in cls.__subclasses__()))


def _known_names() -> set[str]:
    """Return every field of every service whose settings module is loaded, plus those of services that are not."""
    for module in _SETTINGS_MODULES:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:  # a service that is not installed on this machine
            continue
    return {name.upper() for cls in _subclasses(Settings) for name in cls.__struct_fields__}


# Named as text: wire imports no service; a settings module imports nothing but wire.
_SETTINGS_MODULES = (
    "gateway.edge.settings",
    "gateway.balancer.settings",
    "tokenizer_svc.settings",
    "cache_svc.history.settings",
    "cache_svc.prefix.settings",
    "model_svc.settings",
    "headrace.settings",
)


def _from_environment(cls: type[S], environ: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in environ if name.startswith(ENV_PREFIX)]
    own = {ENV_PREFIX + field.upper(): field for field in cls.__struct_fields__}
    unknown = [name for name in names if name not in own]
    if unknown:
        known = _known_names() | OTHER_NAMES
        for name in unknown:
            if name.removeprefix(ENV_PREFIX) not in known:
                near = guess(name, [ENV_PREFIX + other for other in known])
                raise SettingsError(f"{name}: no setting of this name exists{near}")
    return {own[name]: environ[name] for name in names if name in own}


def _most(name: str) -> int:
    """Return the largest value of a whole number: what ends in C code are bytes in 64 bits, counts in 32."""
    if name.endswith("_bytes"):
        return 2**63 - 1
    return 65_536 if name.endswith("_concurrency") else 2**31 - 1


def guess(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` for a name that is nearly one of those known, else nothing."""
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else ""


def _wrong_kind(cls: type[S], values: Mapping[str, Any], error: msgspec.ValidationError) -> str:
    """Return what a value should have been, in the words of whoever set it."""
    at = _AT.search(str(error))
    if at is None:
        return str(error)
    kind = next(_KINDS.get(field.type) for field in msgspec.structs.fields(cls) if field.name == at[1])
    unit = " of bytes" if at[1].endswith("_bytes") else ""
    return f"{at[1]} must be {kind}{unit}, not {values[at[1]]!r}" if kind else f"{at[1]}: {error}"


def _split_lists(cls: type[S], values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the comma-separated text of tuple fields into lists."""
    types = {field.name: field.type for field in msgspec.structs.fields(cls)}
    return {
        name: [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, str) and str(types[name]).startswith(("tuple", "typing.Tuple"))
        else value
        for name, value in values.items()
    }


def load(cls: type[S], environ: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None) -> S:
    """Fill the settings Struct of a service.

    Raises SettingsError that names the variable or flag at fault.
    """
    set_outside = _from_environment(cls, os.environ if environ is None else environ)
    flags = {name: value for name, value in (overrides or {}).items() if value is not None}
    values: dict[str, Any] = {**set_outside, **flags}
    try:
        values |= {name: _expanded(name, values[name]) for name in _FOLDERS if values.get(name)}
        return msgspec.convert(_split_lists(cls, values), cls, strict=False)
    except msgspec.ValidationError as error:
        said = _wrong_kind(cls, values, error)
    except SettingsError as error:
        said = str(error)
    field = said[: len(said) - len(said.lstrip(_NAME))]
    from_variable = field in set_outside and field not in flags
    raise SettingsError((ENV_PREFIX + field.upper() if from_variable else field) + said[len(field) :])


def as_text(settings: Settings) -> str:
    """Return one `name = value` line per setting; a password in a URL is not shown."""
    values = msgspec.to_builtins(settings)
    values["redis_url"] = without_password(settings.redis_url)
    return "\n".join(f"{name} = {value!r}" for name, value in values.items())


def without_password(url: str) -> str:
    """Return a URL fit for eyes and logs."""
    return re.sub(r"([?&](?:ssl_)?password=)[^&]*", r"\1***", re.sub(r"(://[^:@/]*):.*@", r"\1:***@", url))
