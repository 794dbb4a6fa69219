"""The engine alone on a GPU: the model's shape with random weights, engine and runner in this process, ids in and out.

    python -m loadtest.engine [--shape gpt-oss-20b] [--weights fp8] [--kv-dtype fp8] [--tests decode1,prefill2048,...]
        [--json out.json] [--profile 1,64]

Prints what each test took, the floor that the card's own copy bandwidth and matrix rate set, and vLLM's figure from the
same card where one was measured (vLLM 0.26, offline engine, dummy weights, CUDA graphs; 2026-11-27).
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from loadtest.device_time import ceilings
from loadtest.engine_bench import KV_DTYPES, WEIGHTS, Bench
from loadtest.engine_profile import profile
from loadtest.engine_tests import decode, host_ms, mixed, prefill, prompts, stutter, warm
from loadtest.shapes import MIXTURES, SHAPES, SMOLLM2_135M

# vLLM 0.26.0 on the shape of LLAMA, by card and weights; ms unless the test says otherwise.
LLAMA = "llama-8b"
VLLM: dict[tuple[str, str], dict[str, float]] = {
    ("H200", "bf16"): {
        "decode1": 4.89, "decode8": 5.00, "decode32": 5.44, "decode64": 5.96, "decode128": 7.20, "decode256": 10.96,
        "prefill128": 12.3, "prefill2048": 52.0, "prefill8192": 220.0, "prompts": 43143.0, "mixed": 8512.0,
        "warm": 11.4, "small": 1.63,
    },
    ("H100", "bf16"): {
        "decode1": 6.51, "decode8": 6.67, "decode32": 7.13, "decode64": 7.80, "decode128": 9.24, "decode256": 12.71,
        "prefill128": 16.2, "prefill2048": 56.0, "prefill8192": 230.0, "prompts": 42426.0, "mixed": 7344.0,
        "warm": 20.1, "small": 2.14,
    },
    ("H200", "fp8"): {
        "decode1": 3.48, "decode8": 3.58, "decode32": 4.52, "decode64": 4.55, "decode128": 5.87, "decode256": 8.88,
        "prefill128": 12.4, "prefill2048": 35.5, "prefill8192": 147.0, "prompts": 67699.0, "mixed": 10929.0,
    },
    ("H100", "fp8"): {
        "decode1": 4.40, "decode8": 4.39, "decode32": 4.99, "decode64": 5.42, "decode128": 6.95, "decode256": 9.91,
        "prefill128": 18.6, "prefill2048": 38.3, "prefill8192": 157.0, "prompts": 63469.0, "mixed": 9304.0,
    },
}  # fmt: skip


@dataclass
class Figure:
    """One row of the table. `floor` 0: none is given."""

    test: str
    unit: str
    ours: float
    floor: float = 0.0
    vllm: float = 0.0
    note: str = ""


def _rows(bench: Bench, ceiling: tuple[float, float]) -> dict[str, Callable[[], Figure]]:
    """Return every test of the table by its name."""
    rows: dict[str, Callable[[], Figure]] = {}
    rows |= {f"decode{n}": partial(_decode, bench, n) for n in (1, 8, 16, 32, 64, 128, 256)}
    rows |= {"long64": partial(_long, bench)}
    rows |= {f"prefill{n}": partial(_prefill, bench, n) for n in (128, 2048, 8192)}
    rows |= {"prompts": partial(_prompts, bench), "warm": partial(_warm, bench)}
    rows |= {"itl": partial(_itl, bench), "host256": partial(_host, bench)}
    if bench.shape is SHAPES[LLAMA]:
        rows |= {"small": partial(_small, ceiling)}
    return rows | {"mixed": partial(_mixed, bench)}


def _decode(bench: Bench, batch: int) -> Figure:
    took, context = decode(bench, batch)
    return Figure(f"decode{batch}", "ms/step", took, bench.floors.decode_ms(batch, context))


def _long(bench: Bench) -> Figure:
    took, context = decode(bench, 64, prompt=4096)
    return Figure("long64", "ms/step", took, bench.floors.decode_ms(64, context), note="behind 4,096 tokens")


def _prefill(bench: Bench, length: int) -> Figure:
    return Figure(f"prefill{length}", "ms", prefill(bench, length), bench.floors.prefill_ms(length))


def _prompts(bench: Bench) -> Figure:
    return Figure("prompts", "tok/s", prompts(bench), 32768e3 / bench.floors.prefill_ms(1024, 32))


def _warm(bench: Bench) -> Figure:
    took, device = warm(bench)
    return Figure("warm", "ms", took, bench.floors.decode_ms(1, 0), note=f"device {device:.2f} ms")


def _itl(bench: Bench) -> Figure:
    quiet, busy = stutter(bench)
    return Figure("itl", "x quiet p99", busy / quiet, note=f"{quiet:.2f} ms quiet, {busy:.2f} ms busy")


def _host(bench: Bench) -> Figure:
    parts = host_ms(bench, 256)
    note = ", ".join(f"{name} {value:.3f}" for name, value in parts.items())
    return Figure("host256", "ms/step", sum(parts.values()), note=note)


def _small(ceiling: tuple[float, float]) -> Figure:
    model = Bench(SMOLLM2_135M, ceiling, max_num_seqs=8, num_blocks=4096)
    took, context = decode(model, 1, 400)
    floor = model.floors.decode_ms(1, context)
    model.runner.close()
    return Figure("small", "ms/step", took, floor)


def _mixed(bench: Bench) -> Figure:
    rates = mixed(bench)  # as vLLM's figure, the median of three
    return Figure("mixed", "tok/s", statistics.median(rates), note=", ".join(f"{rate:,.0f}" for rate in rates))


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", default="", help="names with commas in between; all by default")
    parser.add_argument("--shape", choices=SHAPES | MIXTURES, default=LLAMA, help="of the model")
    parser.add_argument("--weights", choices=WEIGHTS, default="bf16", help="of the layers")
    parser.add_argument("--kv-dtype", choices=KV_DTYPES, default="bf16", help="of the KV cache")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--num-blocks", type=int, help="of the KV cache; by default what fits")
    parser.add_argument("--profile", default="", help="batch sizes whose decode step is profiled")
    args = parser.parse_args(argv)
    console = Console(width=130)
    if not torch.cuda.is_available():
        console.print("no CUDA device: the engine's benchmark needs one")
        return 1
    ceiling = ceilings()
    torch.cuda.empty_cache()
    card = torch.cuda.get_device_name()
    if args.weights == "fp8":
        ceiling = ceiling[0], 2 * ceiling[1]  # what the card's sheet promises; cuBLAS reaches 1.9 times bf16's rate
    options = {"num_blocks": args.num_blocks, "weights": args.weights, "kv_dtype": KV_DTYPES[args.kv_dtype]}
    bench = Bench((SHAPES | MIXTURES)[args.shape], ceiling, **options)
    console.print(f"{card}: copy {ceiling[0]:,.0f} GB/s, product {ceiling[1]:,.0f} TFLOP/s; {bench.seconds}")
    gc.collect()
    gc.freeze()
    peers = next((figures for (name, weights), figures in VLLM.items() if name in card and weights == args.weights), {})
    if args.shape != LLAMA or args.kv_dtype != "bf16":
        peers = {}
    rows = _rows(bench, ceiling)
    names = args.tests.split(",") if args.tests else list(rows)
    figures = [found for name in names if (found := _measured(bench, name, rows, console)) is not None]
    for figure in figures:
        figure.vllm = peers.get(figure.test, 0.0)
    for batch in filter(None, args.profile.split(",")):
        profile(bench, int(batch), console)
    console.print(_table(figures, f"{card}, {args.shape}, {args.weights}"))
    if args.json:
        result = {
            "card": card,
            "shape": args.shape,
            "weights": args.weights,
            "copy_gb_s": ceiling[0],
            "product_tflop_s": ceiling[1],
            "seconds": bench.seconds,
        }
        args.json.write_text(json.dumps(result | {"figures": [asdict(figure) for figure in figures]}, indent=1))
    return 0


def _measured(bench: Bench, name: str, rows: Mapping[str, Callable[[], Figure]], console: Console) -> Figure | None:
    began = time.perf_counter()
    try:
        figure = rows[name]()
    except Exception as error:  # the other rows are wanted all the same
        console.print(f"{name}: {type(error).__name__}: {error}")
        bench.engine = bench.new_engine()
        return None
    console.print(f"{name}: {figure.ours:.3f} {figure.unit} {figure.note} ({time.perf_counter() - began:.1f} s)")
    return figure


def _table(figures: list[Figure], title: str) -> Table:
    table = Table("test", "unit", "ours", "floor", "of floor", "vLLM", "against it", title=title)
    for figure in figures:
        rate = figure.unit == "tok/s"  # more is better
        of_floor = figure.ours / figure.floor if rate and figure.floor else figure.floor / figure.ours
        against = (figure.ours / figure.vllm if rate else figure.vllm / figure.ours) if figure.vllm else 0.0
        table.add_row(
            figure.test,
            figure.unit,
            f"{figure.ours:,.3f}",
            f"{figure.floor:,.2f}" if figure.floor else "",
            f"{of_floor:.0%}" if figure.floor else "",
            f"{figure.vllm:,.2f}" if figure.vllm else "",
            f"{against:.2f} x" if against else "",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
