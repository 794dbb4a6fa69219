"""Where the time of a decode step on a GPU goes, by torch's profiler."""

from __future__ import annotations

import statistics

import torch
from rich.console import Console
from rich.table import Table

from loadtest.engine_bench import Bench


def profile(bench: Bench, batch: int, console: Console) -> None:
    """Print where the time of a decode step goes: kernels by time, and the device's idle share."""
    bench.engine = bench.new_engine()
    for _ in range(batch):
        bench.add(bench.prompt(128), 60)
    while bench.engine.load().num_running < batch or bench.engine.scheduler.roster.prefilling:
        bench.engine.step()
    steps = 10
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        for _ in range(steps):
            bench.engine.step()
        torch.cuda.synchronize()
    bench.drain()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in trace.events()
        if event.device_type.name == "CUDA"
    )
    if not spans:
        console.print("the profiler saw no kernel")
        return
    whole = max(end for _, end, _ in spans) - spans[0][0]
    idle, reached = 0.0, spans[0][0]
    per_name: dict[str, list[float]] = {}
    for start, end, name in spans:
        idle += max(0.0, start - reached)
        reached = max(reached, end)
        per_name.setdefault(name[:70], []).append(end - start)
    console.print(f"batch {batch}: {whole / steps / 1e3:.3f} ms a step, {idle / whole:.1%} of it idle")
    table = Table("kernel", "a step", "us each", "ms a step")
    for name, times in sorted(per_name.items(), key=lambda item: -sum(item[1]))[:16]:
        count = len(times) / steps
        table.add_row(name, f"{count:.1f}", f"{statistics.mean(times):.1f}", f"{sum(times) / steps / 1e3:.3f}")
    console.print(table)
