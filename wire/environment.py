"""Where settings come from: defaults, HEADRACE_* environment variables and flags, read once into a service's Struct.

A field `max_num_seqs` is read from HEADRACE_MAX_NUM_SEQS and from the flag `--max-num-seqs` (`wire.flags`); flags win.
An unknown HEADRACE_ name is an error, so that a typing slip cannot pass silently; names of other services' fields are
known.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
import string
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from wire.settings import FOLDERS, Settings, SettingsError, expanded

ENV_PREFIX = "HEADRACE_"

# Read outside a Settings Struct: by the kernels' dispatch, by tests, and by the supervisor for its children.
OTHER_NAMES = frozenset({"KERNELS", "TEST_MODEL", "DEBUG_KILL_AT", "CACHE_DIR", "SUPERVISOR"})
# Read by compose.yaml alone, in a shell that may run the command line, too.
OTHER_NAMES |= frozenset({"BASE", "BUS_IMAGE", "BUS_MEMORY", "IMAGE", "PASSWORD", "PIP_OPTIONS", "TARGET"})

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

S = TypeVar("S", bound=Settings)
_AT = re.compile(r" - at `\$\.(\w+).*`")  # msgspec names the field last
_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
_KINDS |= {int | None: _KINDS[int], float | None: _KINDS[float]}
_NAME = string.ascii_lowercase + "_"


def load(cls: type[S], environ: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None) -> S:
    """Fill the settings Struct of a service.

    Raises SettingsError that names the variable or flag at fault.
    """
    set_outside = _from_environment(cls, os.environ if environ is None else environ)
    flags = {name: value for name, value in (overrides or {}).items() if value is not None}
    values: dict[str, Any] = {**set_outside, **flags}
    try:
        values |= {name: expanded(name, values[name]) for name in FOLDERS if values.get(name)}
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


def guess(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` for a name that is nearly one of those known, else nothing."""
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    return f"; did you mean {near[0]}?" if near else ""


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
