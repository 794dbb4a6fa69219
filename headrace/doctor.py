"""`headrace doctor`: looks at what serving needs and says, for each fault, how to mend it."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import anyio
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.roles import ROLES, load_settings
from headrace.settings import UpSettings
from wire import environment
from wire.settings import SettingsError

MIN_FREE_BYTES = 2 << 30
MIN_OPEN_FILES = 1024
MIN_SHARED_BYTES = 512 << 20


class Finding(NamedTuple):
    """One thing looked at. `fix` is empty when all is well; `fatal` means that serving cannot work."""

    what: str
    seen: str
    fix: str = ""
    fatal: bool = False


def check_python() -> Finding:
    """Look at the interpreter."""
    return Finding("python", sys.version.split()[0])


def check_settings() -> Finding:
    """Look at HEADRACE_* variables."""
    try:
        settings = environment.load(UpSettings)
        for role in ROLES:
            load_settings([role], {})
    except SettingsError as error:
        return Finding("settings", str(error), "unset or correct that variable", fatal=True)
    return Finding("settings", f"state in {settings.state_dir}")


def check_device() -> Finding:
    """Look at torch and the device it will use."""
    try:
        import torch
    except ImportError as error:
        return Finding("device", str(error), "run `make up` again: the installation is incomplete", fatal=True)
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return Finding("device", f"{torch.cuda.get_device_name()}, {free >> 30} of {total >> 30} GiB free")
    return Finding("device", f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}")


def check_kernels() -> Finding:
    """Run one kernel and compare it with its reference."""
    import torch

    from kernels.rms_norm import reference, rms_norm

    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, weight = torch.randn(3, 64, device=device), torch.randn(64, device=device)
    try:
        error = (rms_norm(x, weight, 1e-5) - reference(x, weight, 1e-5)).abs().max().item()
    except Exception as failure:
        return Finding("kernels", repr(failure)[:80], "check that triton matches this torch", fatal=True)
    if not error < 1e-4:
        return Finding("kernels", f"rms_norm differs by {error:.1e}", "report this with card and driver", fatal=True)
    return Finding("kernels", f"compiled on {device}" if device == "cuda" else "torch forms on the CPU")


def check_native() -> Finding:
    """Look at the native CPU kernels: the best instruction set that is built and that this machine runs."""
    from kernels.native.build import compiler
    from kernels.native.library import available, cores

    found = available()
    if found:
        slow = ": this processor has no AVX2, expect a fraction of the speed" if found[0] == "generic" else ""
        return Finding("native kernels", f"{found[0]}, {cores()} threads{slow}")
    lost = "not built from these sources: on a CPU models run in float32 by torch, several times slower"
    mend = (
        "python -m kernels.native.build" if compiler() else "pip install ziglang, then python -m kernels.native.build"
    )
    return Finding("native kernels", lost, mend)


def check_bus() -> Finding:
    """Start the bundled server and talk to it, or talk to the configured one."""
    from wire.bus import Bus, BusOptions
    from wire.bus.embedded import embedded_server

    async def talk(url: str) -> None:
        async with Bus.open(url, options=BusOptions(patience_s=2.0)) as bus:  # somebody sits and waits for the answer
            await bus.secret("doctor")

    async def run() -> str:
        with anyio.fail_after(10):
            if configured:
                await talk(configured)
                return environment.without_password(configured)
            with tempfile.TemporaryDirectory(prefix="hr-") as folder:
                async with embedded_server(Path(folder)) as url:
                    await talk(url)
            return "bundled valkey-server starts and answers"

    configured = environment.load(UpSettings).redis_url
    try:
        return Finding("bus", anyio.run(run))
    except Exception as error:
        if not configured:
            return Finding("bus", f"the bundled server does not start: {error or repr(error)}", _BUNDLED, fatal=True)
        seen = f"{environment.without_password(configured)}: {_what_redis_says(configured) or error or repr(error)}"
        return Finding("bus", seen, "correct HEADRACE_REDIS_URL, or unset it for the bundled server", fatal=True)


_BUNDLED = "set TMPDIR to a folder that can be written, or HEADRACE_REDIS_URL to a server of your own"


def _what_redis_says(url: str) -> str:
    """Return why a server does not answer: the bus tries again and again, and knows only that it took too long."""
    import redis

    try:
        with redis.Redis.from_url(url.replace("+cluster://", "://", 1), socket_timeout=5) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        return str(error).rstrip(".")
    return ""


def check_model() -> Finding:
    """Look at the model directories, and at the form in which their weights are stored."""
    from model_svc.weights.errors import CheckpointError
    from model_svc.weights.formats.choose import format_of
    from wire.model_card import ModelCard, ModelCardError

    settings = environment.load(UpSettings)
    for model in settings.models:
        try:
            card = ModelCard.load(settings.model_path(model))
            config = card.path / "config.json"
            form = format_of(config, json.loads(config.read_bytes()))
        except ModelCardError as error:
            return Finding("model", str(error), f"headrace pull {model}")
        except CheckpointError as error:
            return Finding("model", str(error), "take it in another form: GGUF, FP8, AWQ, or not quantized", fatal=True)
    stored = f", {form.name}" if form else ""
    return Finding("model", f"{', '.join(settings.models)} ({card.architecture}, context {card.max_model_len}{stored})")


def check_adapters() -> Finding:
    """Look at the LoRA adapters, if there are any: this user must be able to read them."""
    from model_svc.weights.adapter import AdapterCheckpoint
    from model_svc.weights.errors import CheckpointError

    settings = environment.load(UpSettings)
    found = [place for model in settings.models for place in settings.adapters_of(model)]
    try:
        for place in found:
            AdapterCheckpoint(place.name, place.path)
    except CheckpointError as error:
        return Finding("adapters", str(error), "correct HEADRACE_ADAPTERS, or the adapter's files", fatal=True)
    return Finding("adapters", ", ".join(f"{place.name} of {place.model}" for place in found) or "none is set")


def check_disk() -> Finding:
    """Look at the room for models, and for the bus's file if it is ours."""
    settings = environment.load(UpSettings)
    state, folder = _nearest(settings.state_dir), _nearest(settings.model_dir)
    if not settings.redis_url:
        try:
            with tempfile.TemporaryFile(dir=state) as file:
                file.write(bytes(1 << 20))
        except OSError as error:
            seen = f"{state} cannot be written: {error.strerror}"
            return Finding("disk", seen, "make room, or set HEADRACE_STATE_DIR to a place of your own", fatal=True)
    places = (folder,) if settings.redis_url else (folder, state)
    free, least = min((shutil.disk_usage(place).free, str(place)) for place in places)
    fix = "" if free >= MIN_FREE_BYTES else "make room, or set HEADRACE_MODEL_DIR and HEADRACE_STATE_DIR"
    return Finding("disk", f"{free / (1 << 30):.1f} GiB free at {least}", fix)


def _nearest(place: str) -> Path:
    """Return the place, or the folder that it would be made in."""
    folder = Path(place).expanduser().resolve()
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def check_port() -> Finding:
    """Look whether the API's port is free."""
    from headrace.up import UpError
    from headrace.up import check_port as probe

    settings = environment.load(UpSettings)
    try:
        probe(settings.host, settings.port)
    except UpError as error:
        return Finding("port", str(error), "another port or host for headrace up (or Headrace runs there already)")
    return Finding("port", f"{settings.host}:{settings.port} is free")


def check_limits() -> Finding:
    """Look at how many files a process may open: each connection of a client is one."""
    from gateway.edge.room import Room

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen = f"{soft} open files, so {Room().limit} connections at a time"
    if soft == resource.RLIM_INFINITY or soft >= MIN_OPEN_FILES:
        return Finding("limits", seen)
    return Finding("limits", seen, f"ulimit -n {MIN_OPEN_FILES} (systemd: LimitNOFILE=, containers: ulimits)")


def check_shared_memory() -> Finding:
    """Look at /dev/shm, through which the ranks of one model exchange what does not go over NVLink."""
    model = load_settings(["model"], {})["model"]
    num_ranks = max(getattr(model, name) for name in ("tensor_parallel", "pipeline_parallel"))
    if num_ranks == 1 or not Path("/dev/shm").is_dir():
        return Finding("shared memory", "one card for each model: none is needed")
    size = shutil.disk_usage("/dev/shm").total
    fix = "" if size >= MIN_SHARED_BYTES else "give the container shm_size: 1gb (Kubernetes: an emptyDir in memory)"
    return Finding("shared memory", f"{size >> 20} MiB for {num_ranks} processes of a model", fix)


def check_keys() -> Finding:
    """Look at the file of API keys, if one is set."""
    from gateway.edge.settings import EdgeSettings
    from gateway.edge.tenancy.key_file import KeyFileError, load

    path = environment.load(EdgeSettings).api_keys
    if not path:
        return Finding("keys", "no file is set; nobody is asked for a key")
    try:
        keys = load(Path(path).expanduser())
    except KeyFileError as error:
        return Finding("keys", str(error), "correct HEADRACE_API_KEYS or the file; `headrace keys add` makes one", True)
    return Finding("keys", f"{path}: {len(keys)} keys", "" if keys else "headrace keys add TENANT")


def check_safety() -> Finding:
    """Look at the safety policy, if one is set."""
    from gateway.edge.settings import EdgeSettings
    from gateway.postprocess.safety.policy import SafetyPolicyError
    from gateway.postprocess.safety.store import Policies

    path = environment.load(EdgeSettings).safety_policy
    if not path:
        return Finding("safety", "no policy is set; nothing is filtered")
    try:
        policies = Policies(Path(path).expanduser())
    except SafetyPolicyError as error:
        return Finding("safety", str(error), "correct it; headrace safety test shows what a policy does", fatal=True)
    return Finding("safety", f"{path}: policies of {', '.join(policies.names)}")


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_python, check_settings, check_device, check_kernels, check_native, check_bus,
    check_model, check_adapters, check_keys, check_safety, check_limits, check_shared_memory, check_disk, check_port,
)  # fmt: skip


def main() -> int:
    """Print a table of findings; returns 1 if something must be mended before serving can work."""
    table = Table("", "what", "seen", "fix", box=None)
    findings: list[Finding] = []
    for check in CHECKS:
        finding = check()
        findings.append(finding)
        sign = "[green]ok[/]" if not finding.fix else "[red]!![/]" if finding.fatal else "[yellow]![/]"
        table.add_row(sign, finding.what, escape(finding.seen), escape(finding.fix))
        if finding.fatal and finding.what == "settings":
            break
    Console().print(table)
    return int(any(finding.fatal for finding in findings))
