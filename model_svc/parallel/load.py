"""Load a model on several ranks: this process is rank 0, which the engine runs in; the others are its children."""

from __future__ import annotations

from pathlib import Path

import torch

from model_svc.engine.plan import Runner
from model_svc.models.config import ModelConfig, load_config
from model_svc.parallel.crew import Crew
from model_svc.parallel.join import join
from model_svc.parallel.rank import factory_named
from model_svc.parallel.runner import ParallelRunner
from model_svc.runner.load import RunnerConfigError
from model_svc.runner.spare_time import logical_cores

_PATIENCE_S = 120.0  # ranks do the same at the same time: one that is so far behind hangs


def load_runner(
    model_path: str | Path,
    *,
    tensor_parallel: int,
    factory: str = "model_svc.runner.load:load_runner",
    device: str = "cpu",
    patience_s: float = _PATIENCE_S,
    **options: int | str | None,
) -> Runner:
    """Load a model on `tensor_parallel` ranks; `factory` makes each rank's runner with the same options.

    Raises RunnerConfigError for a model or machine that cannot be shared so, RankError for a rank that is lost.
    """
    check_model(load_config(Path(model_path)), tensor_parallel)
    devices = devices_of(device, tensor_parallel)
    if devices[0] == "cpu":
        options["threads"] = options.get("threads") or max(1, logical_cores() // tensor_parallel)
    crew = Crew(devices, factory, str(model_path), options, patience_s)
    try:
        group = join(crew.meet(), 0, tensor_parallel, device, patience_s)
        own = factory_named(factory)(model_path, device=device, group=group, **options)
    except RuntimeError as error:
        reason = crew.blame(error)
        crew.close()
        raise reason from error
    except BaseException:
        crew.close()
        raise
    return ParallelRunner(own, crew, group)


def check_model(config: ModelConfig, size: int) -> None:
    """Raise RunnerConfigError unless a model's heads and feed-forward blocks can be cut into `size` equal parts."""
    kv_heads = config.num_kv_heads
    counts = {"attention heads": config.num_heads, "feed-forward columns": config.intermediate_size}
    for name, count in counts.items():
        if count % size:
            raise RunnerConfigError(f"tensor_parallel {size} does not divide the model's {count} {name}")
    if kv_heads % size and size % kv_heads:
        raise RunnerConfigError(f"tensor_parallel {size} and the model's {kv_heads} KV heads do not divide each other")


def devices_of(device: str, size: int) -> list[str]:
    """Return each rank's device: `device` and the cards behind it. Raises RunnerConfigError if they are not equal."""
    first = torch.device(device)
    if first.type == "cpu":
        return [device] * size
    begin, found = first.index or 0, torch.cuda.device_count()
    if begin + size > found:
        cards = f"{found} card" + ("s" if found != 1 else "")
        raise RunnerConfigError(f"tensor_parallel {size} needs {size} cards from {device} on; this machine has {cards}")
    names = {torch.cuda.get_device_name(index) for index in range(begin, begin + size)}
    if len(names) > 1:
        raise RunnerConfigError(f"tensor_parallel {size} needs equal cards, not {' and '.join(sorted(names))}")
    return [f"{first.type}:{index}" for index in range(begin, begin + size)]
