"""Settings from a command line: `--name value` for each field of a service's Struct; flags win over the environment."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from wire.environment import S, as_text, load
from wire.settings import Settings, SettingsError


def from_command_line(cls: type[S], argv: Sequence[str] | None = None) -> S:
    """Read a service's settings in its `__main__`: flags `--field value` win over the environment.

    `--print-settings` prints the outcome and exits.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    show = "--print-settings" in arguments
    arguments = [item for item in arguments if item != "--print-settings"]
    try:
        settings = load(cls, overrides=parse_flags(cls, arguments))
    except SettingsError as error:
        _fail(str(error))
    if show:
        sys.stdout.write(as_text(settings) + "\n")
        raise SystemExit(0)
    return settings


def parse_flag_pairs(arguments: Sequence[str]) -> dict[str, str]:
    """Parse `--name value` and `--name=value` without knowing the names. Raises SettingsError for anything else."""
    found: dict[str, str] = {}
    rest = iter(arguments)
    for item in rest:
        flag, equals, value = item.partition("=")
        if not flag.startswith("--") or len(flag) < 3:
            raise SettingsError(f"{item}: not a flag; write --name value")
        if not equals:
            following = next(rest, None)
            if following is None:
                raise SettingsError(f"{flag} needs a value")
            value = following
        found[flag.removeprefix("--").replace("-", "_")] = value
    return found


def parse_flags(cls: type[Settings], arguments: Sequence[str]) -> dict[str, str]:
    """Parse the flags of one service. Raises SettingsError for an unknown flag or a missing value."""
    found = parse_flag_pairs(arguments)
    for name in found:
        if name not in cls.__struct_fields__:
            raise SettingsError(f"--{name.replace('_', '-')}: no such flag; known are {', '.join(_flags(cls))}")
    return found


def _flags(cls: type[Settings]) -> list[str]:
    return ["--" + name.replace("_", "-") for name in cls.__struct_fields__]


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"headrace: {message}\n")
    raise SystemExit(2)
