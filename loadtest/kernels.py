"""Times every kernel on a GPU beside what the card can do and what torch offers: `python -m loadtest.kernels [OP ...]`.

Ceilings (copy bandwidth, bf16 product) are measured in the same run. A case is captured in a CUDA graph, over several
sets of inputs where one would fit the L2 cache, and replayed: no launch gaps, no warm cache. Names of ops as arguments
choose some; the function of an op's name below describes its cases.

Long: one short function of cases for each op.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels import activation as activation_op
from kernels import embedding as embedding_op
from kernels import few_rows as few_rows_op
from kernels import few_rows_attention as few_attention_op
from kernels import gemv as gemv_op
from kernels import kv_copy as kv_copy_op
from kernels import logprobs as logprobs_op
from kernels import paged_attention as attention_op
from kernels import penalties as penalties_op
from kernels import rms_norm as norm_op
from kernels import rope as rope_op
from kernels import sample as sample_op

Run = Callable[[], object]
BF16, CUDA = torch.bfloat16, "cuda"


@dataclass(frozen=True)
class Case:
    """One line of the table: `runs` do the same work on different inputs; bytes or flops are the least it must take."""

    shape: str
    runs: Sequence[Run]
    bytes: int = 0
    flops: int = 0
    rival: str = ""
    rival_runs: Sequence[Run] = ()


def microseconds(runs: Sequence[Run], budget_ms: float = 40.0) -> float:
    """Median time of one run, by replays of a CUDA graph that holds all of `runs` several times."""
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
    source = torch.randn(1 << 30, device=CUDA, dtype=BF16)
    target = torch.empty_like(source)
    # The copy engine and a plain kernel differ by up to a fifth, either way; the better one is what the card can do.
    ways = (partial(target.copy_, source), partial(torch.neg, source, out=target))
    copy = 2 * source.nbytes / min(microseconds([way]) for way in ways) / 1e3
    a, b = (torch.randn(8192, 8192, device=CUDA, dtype=BF16) for _ in range(2))
    return copy, 2 * 8192**3 / microseconds([partial(torch.mm, a, b)]) / 1e6


def _randn(*shape: int) -> Tensor:
    return torch.randn(shape, device=CUDA, dtype=BF16)


def rms_norm() -> Iterator[Case]:
    for T, E in ((8192, 4096), (64, 4096), (1, 4096)):
        sets = [(_randn(T, E), _randn(T, E), _randn(E)) for _ in range(3)]
        yield Case(
            f"{T} x {E}",
            [partial(norm_op.rms_norm, x, w, 1e-5) for x, _, w in sets],
            bytes=4 * T * E,
            rival="torch",
            rival_runs=[partial(functional.rms_norm, x, (E,), w, 1e-5) for x, _, w in sets],
        )
        yield Case(
            f"add {T} x {E}", [partial(norm_op.add_rms_norm, x, r, w, 1e-5) for x, r, w in sets], bytes=8 * T * E
        )
    heads = [(_randn(8192, 6144)[:, :4096].view(8192, 32, 128), _randn(128)) for _ in range(3)]
    yield Case(
        "heads 8192 x 32 x 128", [partial(norm_op.rms_norm, x, w, 1e-6) for x, w in heads], bytes=4 * 8192 * 4096
    )


def rope() -> Iterator[Case]:
    cos = torch.randn(8192, 64, device=CUDA)
    for T in (8192, 64):
        rows = [_randn(T, 6144) for _ in range(3)]
        qkv = [
            (r[:, :4096].view(T, 32, 128), r[:, 4096:5120].view(T, 8, 128), r[:, 5120:].view(T, 8, 128)) for r in rows
        ]
        positions, slots = torch.arange(T, device=CUDA), torch.randperm(T, device=CUDA)
        keys, values = _randn(T // 16, 16, 8, 128), _randn(T // 16, 16, 8, 128)
        yield Case(
            f"{T} x (32 + 8) x 128",
            [partial(rope_op.rope, q, k, cos, cos, positions) for q, k, _ in qkv],
            bytes=4 * T * 40 * 128,
        )
        yield Case(
            f"and store {T}",
            [partial(rope_op.rope_store_kv, q, k, v, cos, cos, positions, keys, values, slots) for q, k, v in qkv],
            bytes=4 * T * 48 * 128,
        )


def activation() -> Iterator[Case]:
    def torch_silu_and_mul(x: Tensor) -> Tensor:
        return functional.silu(x[:, :14336]) * x[:, 14336:]

    for T in (8192, 64):
        sets = [_randn(T, 2 * 14336) for _ in range(2)]
        yield Case(
            f"silu {T} x 14336",
            [partial(activation_op.silu_and_mul, x) for x in sets],
            bytes=6 * T * 14336,
            rival="torch",
            rival_runs=[partial(torch_silu_and_mul, x) for x in sets],
        )


def embedding() -> Iterator[Case]:
    weight = _randn(128256, 4096)
    ids = [torch.randint(128256, (8192,), device=CUDA) for _ in range(3)]
    yield Case(
        "8192 x 4096",
        [partial(embedding_op.embedding, i, weight) for i in ids],
        bytes=4 * 8192 * 4096,
        rival="torch",
        rival_runs=[partial(functional.embedding, i, weight) for i in ids],
    )


def paged_attention() -> Iterator[Case]:
    for S, context in ((64, 4096), (1, 8192), (8, 4096), (32, 2048), (128, 256), (256, 512), (1, 512)):
        yield _decode_case(S, context, 1)
    yield _decode_case(64, 2048, 4)
    for S, n in ((4, 4096), (1, 8192), (1, 2048), (32, 1024)):
        yield _prefill_case(S, n, n)
    yield _prefill_case(1, 2048, 8192)


def _attention_run(S: int, n: int, context: int) -> Run:
    B, H, K, D = 16, 32, 8, 128
    width = context // B
    q, cache = _randn(S * n, H, D), _randn(2, S * width, B, K, D)
    tables = torch.randperm(S * width, device=CUDA).int().view(S, width)
    starts = torch.arange(0, S * n + 1, n, device=CUDA, dtype=torch.int32)
    lens = torch.full((S,), context, device=CUDA, dtype=torch.int32)
    return partial(
        attention_op.paged_attention, q, cache[0], cache[1], tables, starts, lens,
        scale=D**-0.5, max_query_len=n, max_context_len=context,
    )  # fmt: skip


def _decode_case(S: int, context: int, n: int) -> Case:
    sets = 1 if S * context > 1 << 16 else 4
    return Case(
        f"decode {S} x {context}" + (f", {n} drafts" if n > 1 else ""),
        [_attention_run(S, n, context) for _ in range(sets)],
        bytes=4 * S * context * 8 * 128,
    )


def _prefill_case(S: int, n: int, context: int) -> Case:
    q, k, v = _randn(S, 32, n, 128), _randn(S, 8, n, 128), _randn(S, 8, n, 128)

    def cudnn() -> object:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    pairs = n * (context - n) + n * (n + 1) // 2
    return Case(
        f"prefill {S} x {n}" + (f" after {context - n}" if context > n else ""),
        [_attention_run(S, n, context)],
        flops=4 * S * 32 * 128 * pairs,
        rival="cuDNN" if context == n else "",
        rival_runs=[cudnn] if context == n else [],
    )


def sample() -> Iterator[Case]:
    S, V = 256, 128256
    logits = [torch.randn(S, V, device=CUDA) * 3 for _ in range(2)]
    seeds = torch.arange(S, device=CUDA)

    def filled(value: float) -> Tensor:
        return torch.full((S,), value, device=CUDA)

    def torch_top_p(x: Tensor) -> Tensor:
        values, ids = (x / 0.8).topk(50)
        probs = values.softmax(-1)
        probs = torch.where(probs.cumsum(-1) - probs < 0.95, probs, 0.0)
        return ids.gather(1, (probs / torch.empty_like(probs).exponential_()).argmax(-1, keepdim=True))

    for name, t, k, p, m in (
        ("greedy", 0.0, 0, 1.0, 0.0),
        ("t 1", 1.0, 0, 1.0, 0.0),
        ("t 0.8, p 0.95, k 50", 0.8, 50, 0.95, 0.0),
        ("t 0.8, p 0.95", 0.8, 0, 0.95, 0.0),
        ("t 1, min-p 0.05", 1.0, 0, 1.0, 0.05),
        ("t 1, k 1000", 1.0, 1000, 1.0, 0.0),
    ):
        args = (filled(t), torch.full((S,), k, dtype=torch.int32, device=CUDA), filled(p), filled(m), seeds, seeds)
        for rows in (S, 1) if k in (0, 50) else (S,):
            yield Case(
                f"{rows} x {V}, {name}",
                [partial(sample_op.sample, x[:rows], *(a[:rows] for a in args)) for x in logits],
                bytes=4 * rows * V,
                rival="topk 50" if k == 50 else "",
                rival_runs=[partial(torch_top_p, x[:rows]) for x in logits] if k == 50 else [],
            )


def penalties() -> Iterator[Case]:
    S, V = 256, 128256
    logits = torch.randn(S, V, device=CUDA)
    words, rows = -(-V // 32), torch.arange(S, device=CUDA, dtype=torch.int32)
    ones = torch.ones(S, device=CUDA)
    every = penalties_op.Penalties(
        state=rows,
        prompt_mask=torch.zeros(S, words, dtype=torch.int32, device=CUDA),
        output_counts=torch.zeros(S, V, dtype=torch.int16, device=CUDA),
        repetition=ones,
        frequency=ones,
        presence=ones,
        grammar=rows,
        allowed=torch.full((S, words), -1, dtype=torch.int32, device=CUDA),
    )
    yield Case(
        f"{S} x {V}, all", [partial(penalties_op.apply_penalties, logits, every)], bytes=S * (V * 10 + words * 8)
    )
    masks = penalties_op.Penalties(grammar=rows, allowed=every.allowed)
    yield Case(f"{S} x {V}, grammar", [partial(penalties_op.apply_penalties, logits, masks)], bytes=S * words * 4)


def logprobs() -> Iterator[Case]:
    def torch_top(x: Tensor) -> object:
        return x.log_softmax(-1).topk(20)

    logits = [torch.randn(64, 128256, device=CUDA) for _ in range(3)]
    chosen = torch.zeros(64, dtype=torch.int64, device=CUDA)
    yield Case(
        "64 x 128256, top 20",
        [partial(logprobs_op.top_logprobs, x, chosen, 20) for x in logits],
        bytes=4 * 64 * 128256,
        rival="torch",
        rival_runs=[partial(torch_top, x) for x in logits],
    )


def kv_copy() -> Iterator[Case]:
    cache = _randn(16384, 16, 8, 128)
    ids = torch.randperm(16384, device=CUDA)
    out = _randn(8192, 16, 8, 128)
    yield Case(
        "gather 8192 blocks",
        [partial(kv_copy_op.gather_blocks, cache, ids[:8192], out)],
        bytes=2 * out.nbytes,
        rival="torch",
        rival_runs=[partial(torch.index_select, cache, 0, ids[:8192], out=out)],
    )
    yield Case(
        "copy 8192 blocks", [partial(kv_copy_op.copy_blocks, cache, ids[:8192], ids[8192:])], bytes=2 * out.nbytes
    )


def gemv() -> Iterator[Case]:
    for F, E in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)):
        sets = [(_randn(1, E), _randn(F, E)) for _ in range(max(1, 160_000_000 // (F * E)))]
        yield Case(
            f"{E} -> {F}",
            [partial(gemv_op.linear, x, w) for x, w in sets],
            bytes=2 * F * E,
            rival="cuBLAS",
            rival_runs=[partial(functional.linear, x, w) for x, w in sets],
        )


def few_rows() -> Iterator[Case]:
    """The products of a decode step of the 8B shape, each with what is fused into it; cuBLAS has the product alone."""
    for T in (8, 32, 64):
        yield from _few_rows(T)


def _few_rows(T: int) -> Iterator[Case]:
    E, inner, heads, D = 4096, 14336, 32 + 2 * 8, 128
    x, wide, residual, norm = _randn(T, E), _randn(T, inner), _randn(T, E), few_rows_op.RmsNormWeights(_randn(E), 1e-5)
    cache, rows, angles = _randn(2, T, 16, 8, D), torch.arange(T, device=CUDA), torch.randn(4096, D // 2, device=CUDA)
    turn = few_rows_op.Rotation(angles, angles, rows, cache[0], cache[1], rows * 16)
    arrived = torch.zeros(heads * D, dtype=torch.int32, device=CUDA)
    begun = few_rows_op.linear_add(x, _randn(E, E), residual, arrived, norm)
    products: tuple[tuple[str, int, Tensor, Callable[[Tensor], object]], ...] = (
        ("qkv", heads * D, x, lambda w: few_rows_op.norm_qkv(x, norm, w, D, turn, arrived)),
        ("o", E, x, lambda w: few_rows_op.linear_add(x, w, residual, arrived, norm)),
        ("gate and up", 2 * inner, x, lambda w: few_rows_op.norm_gate(x, norm, w, few_rows_op.SILU, begun)),
        ("down", E, wide, lambda w: few_rows_op.linear_add(wide, w, residual, arrived)),
    )
    for name, F, given, run in products:
        weights = [_randn(F, given.shape[1]) for _ in range(max(2, 160_000_000 // (F * given.shape[1])))]
        yield Case(
            f"{T} x {given.shape[1]} -> {F}, {name}",
            [partial(run, w) for w in weights],
            bytes=weights[0].nbytes,
            rival="cuBLAS",
            rival_runs=[partial(functional.linear, given, w) for w in weights],
        )


def few_rows_attention() -> Iterator[Case]:
    """Attention of a decode step with few rows; beside it `paged_attention`."""
    K, D, B = 8, 128, 16
    for T, context in ((1, 512), (8, 512), (32, 256), (64, 256), (64, 4096)):
        runs: list[Run] = []
        rivals: list[Run] = []
        starts = torch.arange(T + 1, device=CUDA, dtype=torch.int32)
        lens = torch.full((T,), context, device=CUDA, dtype=torch.int32)
        arrived = torch.zeros(T * K, device=CUDA, dtype=torch.int32)
        for _ in range(1 if T * context > 1 << 16 else 4):
            qkv, cache = _randn(T, 48 * D), _randn(2, T * context // B, B, K, D)
            tables = torch.randperm(T * context // B, device=CUDA).int().view(T, -1)
            args = (cache[0], cache[1], tables)
            runs.append(partial(few_attention_op.few_rows_attention, qkv, *args, lens, D**-0.5, arrived))
            q = qkv.view(T, 48, D)[:, :32]
            paged = partial(attention_op.paged_attention, q, *args, starts, lens, scale=D**-0.5)
            rivals.append(partial(paged, max_query_len=1, max_context_len=context))
        moved = 4 * T * context * K * D
        yield Case(f"{T} x {context}", runs, bytes=moved, rival="paged_attention", rival_runs=rivals)


OPS = (
    rms_norm, rope, activation, embedding, paged_attention, sample, penalties, logprobs, kv_copy, gemv, few_rows,
    few_rows_attention,
)  # fmt: skip


def main(names: Sequence[str]) -> int:
    """Print the table for the ops `names`, or for all."""
    console = Console(width=120)
    known = {op.__name__: op for op in OPS}
    if unknown := set(names) - set(known):
        console.print(f"unknown ops: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
        return 2
    if not torch.cuda.is_available():
        console.print("no CUDA device: the kernels' benchmark needs one")
        return 1
    copy, product = ceilings()
    title = f"{torch.cuda.get_device_name()}: copy {copy:,.0f} GB/s, bf16 product {product:,.0f} TFLOP/s"
    table = Table("op", "case", "us", "rate", "of ceiling", "beside", "its us", "ours is", title=title)
    for name in names or known:
        for case in known[name]():
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
