"""The processes of `headrace up`: which there are for its settings, in the order of their start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.roles import LIGHT_DESKS
from headrace.settings import UpSettings


class Process(NamedTuple):
    """One process: its name in logs and metrics, the roles that it serves (with commas), and its own flags."""

    name: str
    roles: str
    flags: tuple[str, ...] = ()


def processes(settings: UpSettings) -> Iterator[Process]:
    """Yield the processes: replicas of each model first, which take longest, then desks, then edges."""
    for model in settings.models:
        yield from _replicas(settings, model)
    yield from _desks(settings)


def _replicas(settings: UpSettings, model: str) -> Iterator[Process]:
    shared = (
        f"--tensor-parallel={settings.tensor_parallel}",
        f"--pipeline-parallel={settings.pipeline_parallel}",
        f"--kv-dtype={settings.kv_dtype}",
    )

    def replica(name: str, short_name: str, role: str) -> Process:
        own = (f"--model={model}", f"--replica-name={short_name}", f"--role={role}")
        return Process(name, "model", (*own, *shared))

    role = "decode" if settings.prefill_replicas else "both"
    for number in range(settings.replicas):
        yield replica(f"model-{model}-{number}" if settings.replicas > 1 else f"model-{model}", f"r{number}", role)
    for number in range(settings.prefill_replicas):
        yield replica(f"model-{model}-prefill-{number}", f"p{number}", "prefill")


def _desks(settings: UpSettings) -> Iterator[Process]:
    """Yield one process for all desks, or one for each (`split`); edges stand apart if there are several."""
    listen = (f"--host={settings.host}", f"--port={settings.port}")
    inner = [role for role in LIGHT_DESKS if role != "edge"]
    if settings.edges == 1 and not settings.split:
        yield Process("desks", ",".join(LIGHT_DESKS), listen)
        return
    if settings.split:
        yield from (Process(role, role) for role in inner)
    else:
        yield Process("desks", ",".join(inner))
    if settings.edges == 1:
        yield Process("edge", "edge", listen)
        return
    yield from (Process(f"edge-{number}", "edge", (*listen, "--reuse-port=true")) for number in range(settings.edges))
