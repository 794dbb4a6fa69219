"""Times every kernel on a GPU beside what the card can do and what torch offers: `python -m loadtest.kernels [OP ...]`.

Ceilings (copy bandwidth, bf16 product) are measured in the same run. A case is captured in a CUDA graph, over several
sets of inputs where one would fit the L2 cache, and replayed: no launch gaps, no warm cache. Names of ops as arguments
choose some; the function of an op's name in one of the files beside this one describes its cases.
"""

import argparse
import sys
from collections.abc import Sequence

import torch
from rich.console import Console
from rich.table import Table

from loadtest.device_time import ceilings, microseconds
from loadtest.kernels.attention import few_rows_attention, paged_attention
from loadtest.kernels.experts import (
    expert_choice,
    expert_linear,
    expert_order,
    expert_sum,
    float4_expert_linear,
    grouped_expert_linear,
    route,
)
from loadtest.kernels.float8 import few_rows_float8, quantize_rows, scaled_linear
from loadtest.kernels.latents import head_linear, latent_attention, store_latent
from loadtest.kernels.products import few_rows, gemv, grouped_linear, norm_heads
from loadtest.kernels.rows import activation, embedding, kv_copy, rms_norm, rope
from loadtest.kernels.sampling import logprobs, penalties, sample
from loadtest.kernels.states import (
    causal_conv,
    gated_delta,
    gated_delta_tiles,
    gated_delta_walk,
    gated_norm,
    selective_scan,
)

OPS = (
    rms_norm, rope, activation, embedding, paged_attention, sample, penalties, logprobs, kv_copy, gemv, grouped_linear,
    few_rows, norm_heads, few_rows_attention, few_rows_float8, scaled_linear, quantize_rows,
    expert_choice, route, expert_order, expert_linear, float4_expert_linear, grouped_expert_linear, expert_sum,
    causal_conv, gated_delta, gated_delta_tiles, gated_delta_walk, gated_norm, selective_scan,
    latent_attention, head_linear, store_latent,
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Print the table for the ops that are named, or for all."""
    console = Console(width=120)
    known = {op.__name__: op for op in OPS}
    parser = argparse.ArgumentParser("loadtest.kernels", description="Time kernels on a GPU.")
    parser.add_argument("ops", nargs="*", metavar="OP", help=f"{', '.join(known)}; all if none is named")
    names = parser.parse_args(arguments).ops
    if unknown := set(names) - set(known):
        parser.error(f"unknown ops: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    if not torch.cuda.is_available():
        console.print("no CUDA device: the kernels' benchmark needs one")
        return 1
    copy, product = ceilings()
    title = f"{torch.cuda.get_device_name()}: copy {copy:,.0f} GB/s, bf16 product {product:,.0f} TFLOP/s"
    table = Table("op", "case", "us", "rate", "of ceiling", "beside", "its us", "ours is", title=title)
    for name in names or known:
        for case in known[name]():
            console.print(f"{name}: {case.shape}", style="dim")  # a crash is told with the case that it came in
            took = microseconds(case.runs)
            rate = case.bytes / took / 1e3 if case.bytes else case.flops / took / 1e6
            theirs = microseconds(case.rival_runs) if case.rival_runs else 0.0
            table.add_row(
                name,
                case.shape,
                f"{took:,.1f}",
                f"{rate:,.0f} " + ("GB/s" if case.bytes else "TFLOP/s"),
                f"{rate / (copy if case.bytes else product):.0%}",
                case.rival,
                f"{theirs:,.1f}" if theirs else "",
                f"{theirs / took:.2f} x" if theirs else "",
            )
        torch.cuda.empty_cache()
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
