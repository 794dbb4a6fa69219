"""Load a model on several ranks: this process is rank 0, which the engine runs in; the others are its children."""

from __future__ import annotations

from pathlib import Path

import torch

from model_svc.engine.plan import Runner, RunnerOption
from model_svc.models.config import ModelConfig, load_config
from model_svc.models.registry import model_class
from model_svc.parallel.crew import Crew
from model_svc.parallel.join import join
from model_svc.parallel.pipeline import PipelineRunner
from model_svc.parallel.rank import factory_named
from model_svc.parallel.runner import ParallelRunner
from model_svc.runner.load import RunnerConfigError
from model_svc.runner.spare_time import logical_cores

_PATIENCE_S = 120.0  # ranks do the same at the same time: one that is so far behind hangs


def load_runner(
    model_path: str | Path,
    *,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    factory: str = "model_svc.runner.load:load_runner",
    device: str = "cpu",
    patience_s: float = _PATIENCE_S,
    **options: RunnerOption,
) -> Runner:
    """Load a model on `tensor_parallel` ranks, or in `pipeline_parallel` stages.

    `factory` makes each rank's runner with the same options.

    Raises RunnerConfigError for a model or machine that cannot be shared so, RankError for a rank that is lost.
    """
    staged, size = pipeline_parallel > 1, max(tensor_parallel, pipeline_parallel)
    if staged:
        if options.get("max_drafts"):
            raise RunnerConfigError("pipeline_parallel and drafts do not go together; set speculate to off")
        config = load_config(Path(model_path))
        check_stateless(config)
        check_stages(config, pipeline_parallel, tensor_parallel)
        devices = devices_of(device, size, "pipeline_parallel")
    else:
        config = load_config(Path(model_path))
        check_model(config, size)
        devices = devices_of(device, size, "tensor_parallel")
        check_equal(devices)
    if devices[0] == "cpu":
        options["threads"] = options.get("threads") or max(1, logical_cores() // size)
    crew = Crew(devices, factory, str(model_path), options, patience_s, staged=staged)
    try:
        group = join(crew.meet(), 0, size, device, patience_s, staged=staged)
        own = factory_named(factory)(model_path, device=device, group=group, **options)
    except RuntimeError as error:
        reason = crew.blame(error)
        crew.close()
        raise reason from error
    except BaseException:
        crew.close()
        raise
    return (PipelineRunner if staged else ParallelRunner)(own, crew, group)


def check_stateless(config: ModelConfig) -> None:
    """Raise RunnerConfigError for a model with states, whose layers are not dealt out to stages."""
    if model_class(config).keeps_state(config):
        reason = f"pipeline_parallel and {config.architecture}, which keeps states, do not go together; set 1"
        raise RunnerConfigError(reason)


def check_stages(config: ModelConfig, stages: int, tensor_parallel: int) -> None:
    """Raise RunnerConfigError unless a model's layers can be dealt out to `stages`."""
    if tensor_parallel > 1:
        raise RunnerConfigError("pipeline_parallel and tensor_parallel do not go together; set one of them to 1")
    if stages > config.num_layers:
        raise RunnerConfigError(f"pipeline_parallel {stages} is more than the model's {config.num_layers} layers")


def check_model(config: ModelConfig, size: int) -> None:
    """Raise RunnerConfigError unless a model's heads and feed-forward blocks can be cut into `size` equal parts."""
    kv_heads, parts = config.num_kv_heads, model_class(config).state_parts(config)
    if parts % size:
        raise RunnerConfigError(f"tensor_parallel {size} does not divide the {parts} parts of the model's states")
    counts = {"attention heads": config.num_heads, "feed-forward columns": config.intermediate_size}
    for name, count in counts.items():
        if count % size:
            raise RunnerConfigError(f"tensor_parallel {size} does not divide the model's {count} {name}")
    if kv_heads % size and size % kv_heads:
        raise RunnerConfigError(f"tensor_parallel {size} and the model's {kv_heads} KV heads do not divide each other")


def devices_of(device: str, size: int, setting: str) -> list[str]:
    """Return each rank's device: `device` and the cards behind it. Raises RunnerConfigError if these are too few."""
    first = torch.device(device)
    if first.type == "cpu":
        return [device] * size
    begin, found = first.index or 0, torch.cuda.device_count()
    if begin + size > found:
        cards = f"{found} card" + ("s" if found != 1 else "")
        raise RunnerConfigError(f"{setting} {size} needs {size} cards from {device} on; this machine has {cards}")
    return [f"{first.type}:{index}" for index in range(begin, begin + size)]


def check_equal(devices: list[str]) -> None:
    """Raise RunnerConfigError unless all cards are of one kind: the slowest would keep the others waiting."""
    cards = [torch.device(each) for each in devices if each != "cpu"]
    names = {torch.cuda.get_device_name(card.index) for card in cards}
    if len(names) > 1:
        raise RunnerConfigError(f"tensor_parallel {len(devices)} needs equal cards, not {' and '.join(sorted(names))}")
