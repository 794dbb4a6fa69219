"""What something takes on the GPU at hand, and the ceilings that the card itself sets."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch

Run = Callable[[], object]


def microseconds(runs: Sequence[Run], budget_ms: float = 40.0) -> float:
    """Median time of one run, by replays of a CUDA graph that holds all of `runs` several times."""
    torch.cuda.synchronize()  # the inputs were made on another stream: kernels that read them too early follow garbage
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for run in runs:
            run()
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for run in runs:
            run()
        end.record()
        torch.cuda.synchronize()
        rounds = max(1, min(20, int(budget_ms / 7 / max(begin.elapsed_time(end), 1e-3))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(rounds):
                for run in runs:
                    run()
        graph.replay()
        times = []
        for _ in range(5):
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / (rounds * len(runs)))
    return float(median(times))


def ceilings() -> tuple[float, float]:
    """Copy bandwidth in GB/s (bytes read and written) and rate of a bf16 product of 8,192^3 in TFLOP/s."""
    source = torch.randn(1 << 30, device="cuda", dtype=torch.bfloat16)
    target = torch.empty_like(source)
    # The copy engine and a plain kernel differ by up to a fifth, either way; the better one is what the card can do.
    ways = (partial(target.copy_, source), partial(torch.neg, source, out=target))
    copy = 2 * source.nbytes / min(microseconds([way]) for way in ways) / 1e3
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return copy, 2 * 8192**3 / microseconds([partial(torch.mm, a, b)]) / 1e6
