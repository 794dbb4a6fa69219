"""Cases of what comes behind the head: draws, penalties, log-probabilities."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from kernels import logprobs as logprobs_op
from kernels import penalties as penalties_op
from kernels import sample as sample_op
from loadtest.kernels.case import CUDA, Case


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

    for name, scale, t, k, p, m in (
        ("greedy", 1.0, 0.0, 0, 1.0, 0.0),
        ("t 1", 1.0, 1.0, 0, 1.0, 0.0),
        ("t 0.8, p 0.95, k 50", 1.0, 0.8, 50, 0.95, 0.0),
        ("t 0.8, p 0.95", 1.0, 0.8, 0, 0.95, 0.0),
        ("t 0.8, p 0.95, flat", 1 / 3, 0.8, 0, 0.95, 0.0),
        ("t 0.8, p 0.5, flat", 1 / 3, 0.8, 0, 0.5, 0.0),
        ("t 1, min-p 0.05", 1.0, 1.0, 0, 1.0, 0.05),
        ("t 1, k 1000", 1.0, 1.0, 1000, 1.0, 0.0),
    ):
        args = (filled(t), torch.full((S,), k, dtype=torch.int32, device=CUDA), filled(p), filled(m), seeds, seeds)
        shaped = [x * scale for x in logits]
        passes = 1 if scale == 1 else 2  # where a filter keeps most tokens, what is above the noisiest is read again
        for rows in (S, 1) if k in (0, 50) else (S,):
            yield Case(
                f"{rows} x {V}, {name}",
                [partial(sample_op.sample, x[:rows], *(a[:rows] for a in args)) for x in shaped],
                bytes=4 * rows * V * passes,
                rival="topk 50" if k == 50 else "",
                rival_runs=[partial(torch_top_p, x[:rows]) for x in shaped] if k == 50 else [],
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
