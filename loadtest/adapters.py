"""What LoRA adapters cost a step: decode and prompt with none loaded, none asked for, one, and another for each row.

    python -m loadtest.adapters MODEL_DIR [--device cuda] [--dtype auto] [--adapters 4] [--rank 16] [--streams 1,8,32]

Random adapters of all projections are written to a temporary folder. Medians of steps through the runner.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from model_svc.engine.plan import NewSequence, SequenceStep, StepPlan
from model_svc.models.config import load_config
from model_svc.runner.load import load_runner
from model_svc.weights.open import open_weights
from wire.messages import SamplingParams, pack_ids

_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_CONTEXT, _PROMPT = 128, 448


def write_adapters(model: Path, folder: Path, count: int, rank: int) -> tuple[tuple[str, str], ...]:
    """Write random adapters of a model's projections; returns their names and directories."""
    source: Any = open_weights(model, load_config(model).raw)
    layers = {name.removesuffix(".weight"): shape for name, shape in source.shapes.items() if name.endswith(".weight")}
    layers = {name: shape for name, shape in layers.items() if name.endswith(_TARGETS) and ".experts." not in name}
    made = []
    for n in range(count):
        place = folder / f"a{n}"
        place.mkdir()
        tensors = {}
        for name, (out, size) in layers.items():
            tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(rank, size) * 0.01
            tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(out, rank) * 0.01
        _save(tensors, place / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank}
        (place / "adapter_config.json").write_text(json.dumps(config))
        made.append((place.name, str(place)))
    return tuple(made)


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for tensor in tensors.values():
            file.write(tensor.numpy().tobytes())


def measure(runner: Any, names: list[str], steps: int) -> tuple[float, float]:
    """Return the median milliseconds of a decode step of sequences with these adapters, and of the first's prompt."""
    size = runner.info.block_size
    blocks = -(-(_PROMPT + steps + 1) // size)
    ids = pack_ids([1] * _PROMPT)
    sampling = SamplingParams(temperature=0.0)

    def prompt(slot: int, num_tokens: int) -> StepPlan:
        new = NewSequence(sampling=sampling, seed=0, prompt_ids=ids[: 4 * num_tokens], adapter=names[slot])
        held = tuple(range(slot * blocks, (slot + 1) * blocks))
        share = SequenceStep(
            slot=slot, start=0, num_tokens=num_tokens, token_ids=ids[: 4 * num_tokens], new_blocks=held, new=new
        )
        return StepPlan(step=0, sequences=(share,))

    prompts = [_timed(lambda: runner.collect(runner.submit(prompt(0, _PROMPT)))) for _ in range(5)]
    for slot in range(len(names)):
        runner.collect(runner.submit(prompt(slot, _CONTEXT)))
    times = []
    for n in range(steps):
        shares = tuple(
            SequenceStep(slot=slot, start=_CONTEXT + n, num_tokens=1, from_device=True, output_index=n + 1)
            for slot in range(len(names))
        )
        plan = StepPlan(step=0, sequences=shares)
        times.append(_timed(lambda plan=plan: runner.collect(runner.submit(plan))))  # type: ignore[misc]
    freed = StepPlan(step=0, sequences=(), freed_slots=tuple(range(len(names))))
    runner.collect(runner.submit(freed))
    return statistics.median(times[len(times) // 4 :]), statistics.median(prompts[1:])


def _timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return (time.perf_counter() - began) * 1e3


def main(argv: list[str]) -> None:
    """Print a line for each number of streams and each mix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args(argv)
    streams = [int(part) for part in given.streams.split(",")]
    options: dict[str, Any] = {"device": given.device, "dtype": given.dtype, "max_model_len": 1024}
    options |= {"max_num_seqs": max(streams), "num_blocks": max(streams) * 40, "max_num_batched_tokens": 512}
    with tempfile.TemporaryDirectory() as folder:
        adapters = write_adapters(given.model, Path(folder), given.adapters, given.rank)
        mixes: dict[str, Callable[[int], str]] = {
            "none asked for": lambda _: "",
            "one": lambda _: "a0",
            "one of all": lambda n: "a0" if n == 0 else "",
            "mixed": lambda n: f"a{n % given.adapters}",
        }
        for loaded in (False, True):
            runner = load_runner(given.model, adapters=adapters if loaded else (), **options)
            while getattr(runner, "use_idle_time", lambda: False)() and given.device != "cpu":
                pass
            for mix, choose in mixes.items() if loaded else [("none loaded", lambda _: "")]:
                for count in streams:
                    decode, prompt = measure(runner, [choose(n) for n in range(count)], given.steps)
                    sys.stdout.write(
                        f"{mix:15} {count:3} streams  decode {decode:8.2f} ms  prompt of {_PROMPT} {prompt:8.1f} ms\n"
                    )
                    sys.stdout.flush()
            runner.close()


if __name__ == "__main__":
    main(sys.argv[1:])
