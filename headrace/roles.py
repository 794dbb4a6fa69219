"""The roles that `headrace serve` knows, and how one process runs several of them."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio

from wire import environment, process
from wire.lifeline import die_with
from wire.settings import Settings, SettingsError

# role -> package that holds `service.serve` and `settings`; the name of its settings Struct is the role's, in CamelCase
ROLES: dict[str, str] = {
    "edge": "gateway.edge",
    "balancer": "gateway.balancer",
    "tokenizer": "tokenizer_svc",
    "history": "cache_svc.history",
    "prefix": "cache_svc.prefix",
    "model": "model_svc",
}
LIGHT_DESKS = ("history", "tokenizer", "prefix", "balancer", "edge")


def settings_class(role: str) -> type[Settings]:
    """Return the settings Struct of a role. Raises SettingsError for an unknown role."""
    package = ROLES.get(role)
    if package is None:
        raise SettingsError(f"no role {role!r}; the roles are {', '.join(ROLES)}")
    module = importlib.import_module(f"{package}.settings")
    found: type[Settings] = getattr(module, f"{role.capitalize()}Settings")
    return found


def load_settings(roles: Sequence[str], flags: Mapping[str, Any]) -> dict[str, Settings]:
    """Fill the settings of each role; a flag must be known to at least one of them."""
    classes = {role: settings_class(role) for role in roles}
    known = {name for cls in classes.values() for name in cls.__struct_fields__}
    unknown = sorted(set(flags) - known)
    if unknown:
        near = environment.guess(_flag(unknown[0]), map(_flag, known))
        raise SettingsError(f"{_flag(unknown[0])}: no such flag for {', '.join(roles)}{near}")
    return {
        role: environment.load(
            cls, overrides={name: value for name, value in flags.items() if name in cls.__struct_fields__}
        )
        for role, cls in classes.items()
    }


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def serve(roles: Sequence[str], settings: Mapping[str, Settings]) -> None:
    """Run desks in this process until SIGTERM or SIGINT; a desk that fails takes the process down with its error."""
    supervisor = os.environ.pop("HEADRACE_SUPERVISOR", "")  # its process id, when `up` is our parent
    if supervisor:
        die_with(int(supervisor))

    async def serve_all(first: Settings) -> None:
        with process.shows_readiness(first) as note_ready:
            await start_all(note_ready)

    async def start_all(note_ready: Callable[[], None]) -> None:
        async with anyio.create_task_group() as desks:
            for role in roles:
                service = importlib.import_module(f"{ROLES[role]}.service")
                await desks.start(service.serve, settings[role], name=role)
            # What is loaded stays: a full collection need not walk over it in the middle of an answer.
            gc.collect()
            gc.freeze()
            note_ready()

    process.run(serve_all, settings[roles[0]], name=roles[0] if len(roles) == 1 else "desks")
