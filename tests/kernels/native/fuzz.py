"""Run every native kernel over random shapes: `python fuzz.py FOLDER ISA [ROUNDS [SEED]]`, under sanitizers.

Results of exact size come from torch's allocator, which the address sanitizer watches. The seed is told on stderr.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import torch

from kernels import dispatch
from kernels.activation import CLAMPED, GELU, GELU_TANH, SILU, act_and_mul, gelu_and_mul, silu_and_mul
from kernels.causal_conv import Gates, causal_conv
from kernels.embedding import embedding
from kernels.expert_order import expert_order
from kernels.expert_sum import expert_sum
from kernels.fading import Fading
from kernels.finite import all_finite
from kernels.gated_delta import gated_delta
from kernels.gated_norm import gated_norm
from kernels.lora import LoraRows, LoraWeights, add_lora
from kernels.native.library import set_threads, using
from kernels.native.packed_weight import FORMATS
from kernels.paged_attention import paged_attention
from kernels.quantized_experts import quantized_experts
from kernels.quantized_linear import gated_rounded, quantized_linear
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope import rope_store_kv
from kernels.route import Rule, route
from kernels.sample import sample
from kernels.selective_scan import Steps, selective_scan
from tests.kernels.native.blocks import random_weight


def linear(rng: random.Random) -> None:
    """One weight of any format: as a product and as a table."""
    name = rng.choice(FORMATS)
    K = rng.randint(1, 3) * (256 if name.endswith("K") else 32)
    weight, _ = random_weight(name, rng.randint(1, 70), K)
    quantized_linear(torch.randn(rng.randint(1, 80), K), [weight], torch.randn(weight.shape[0]))
    embedding(torch.randint(-2, 80, (rng.randint(1, 9),)), weight)


def gate(rng: random.Random) -> None:
    """A gate that stays rounded, and the product that takes it."""
    name, F = rng.choice(FORMATS), 32 * rng.randint(1, 4)
    K = rng.randint(1, 3) * (256 if name.endswith("K") else 32)
    up, _ = random_weight(name, 2 * F, K)
    down, _ = random_weight("Q8_0", rng.randint(1, 40), F)
    bias = torch.randn(2 * F) if rng.random() < 0.5 else None
    gated = gated_rounded(torch.randn(rng.randint(1, 150), K), up, rng.choice([SILU, GELU, GELU_TANH, CLAMPED]), bias)
    quantized_linear(gated, [down])


def experts(rng: random.Random) -> None:
    """A router that may have no numbers, and what the chosen experts make of a few tokens."""
    X, T, E, F = rng.randint(1, 9), rng.randint(1, 90), 32 * rng.randint(1, 3), 32 * rng.randint(1, 3)
    names = [rng.choice([name for name in FORMATS if not name.endswith("K")]) for _ in range(2)]
    gate_up, _ = random_weight(names[0], X * 2 * F, E)
    down, _ = random_weight(names[1], X * E, F)
    logits = torch.randn(T, X + 2)[:, 2:]
    if rng.random() < 0.5:
        logits[rng.randrange(T), rng.randrange(X)] = rng.choice([torch.nan, torch.inf, -torch.inf])
    leaders = rng.randint(1, 2)
    groups = rng.choice([n for n in range(1, X + 1) if X % n == 0 and (n == 1 or leaders * n <= X)])
    kept, bias = rng.randint(1, groups), torch.randn(X) if rng.random() < 0.5 else None
    rule = Rule(rng.random() < 0.5, 1.5, groups, kept, leaders)
    routes = route(logits, rng.randint(1, kept * X // groups), renormalise=rng.random() < 0.5, rule=rule, bias=bias)
    order = expert_order(routes, X)
    biases = (torch.randn(X, 2 * F), torch.randn(X, E)) if rng.random() < 0.5 else None
    parts = quantized_experts(torch.randn(T, E), gate_up, down, rng.choice([SILU, CLAMPED]), order, biases)
    expert_sum(parts, order.places, routes.shares)


def adapters(rng: random.Random) -> None:
    """Low-rank additions of odd shapes, to rows in a wider matrix."""
    T, L, R, size = rng.randint(1, 70), rng.randint(1, 3), rng.randint(1, 40), rng.randint(1, 150)
    widths = tuple(rng.randint(1, 300) for _ in range(rng.randint(1, 3)))
    weights = LoraWeights(torch.randn(L, len(widths) * R, size), torch.randn(L, sum(widths), R), widths)
    index = torch.randint(0, L + 1, (T,), dtype=torch.int32)
    out = torch.zeros(T, sum(widths) + 3)[:, 3:]
    add_lora(torch.randn(T, size + 1)[:, 1:], weights, LoraRows(index), out, 0.5)


def rows(rng: random.Random) -> None:
    """Norms and activations of odd widths."""
    T, width = rng.randint(1, 9), rng.randint(1, 150)
    rms_norm(torch.randn(T, 3, width)[:, 1:], torch.rand(width), 1e-5)
    add_rms_norm(torch.randn(T, width), torch.randn(T, width), torch.rand(width), 1e-5)
    silu_and_mul(torch.randn(T, 2 * width))
    act_and_mul(torch.randn(T, 2 * width), CLAMPED)
    gelu_and_mul(torch.randn(T, 2 * width), tanh=rng.random() < 0.5)


def attention(rng: random.Random) -> None:
    """A mixed batch: store what is new, then attend."""
    K, G, D, B = rng.randint(1, 3), rng.randint(1, 4), rng.randint(1, 40) * 2, rng.choice([1, 4, 16])
    lengths = [rng.randint(1, 700) for _ in range(rng.randint(1, 3))]
    queries = [rng.choice([1, 1, rng.randint(1, n)]) for n in lengths]
    T, blocks = sum(queries), max(-(-n // B) for n in lengths)
    cache = torch.randn(2, blocks * len(lengths), B, K, D)
    if rng.random() < 0.5:  # as the runner has it
        cache = cache.half().transpose(2, 3).contiguous().transpose(2, 3)
    tables = torch.randperm(blocks * len(lengths)).int().view(len(lengths), blocks)
    positions = torch.cat([torch.arange(n - q, n) for n, q in zip(lengths, queries, strict=True)])
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(queries))
    slots = tables[sequence, positions // B].long() * B + positions % B
    angles = torch.randn(700, rng.randint(1, D // 2))
    q, k, v = torch.randn(T, K * G, D), torch.randn(T, K, D), torch.randn(T, K, D)
    interleaved = rng.random() < 0.5
    rope_store_kv(q, k, v, angles.cos(), angles.sin(), positions, cache[0], cache[1], slots, interleaved=interleaved)
    start = torch.tensor([0, *torch.tensor(queries).cumsum(0)], dtype=torch.int32)
    paged_attention(
        q, cache[0], cache[1], tables, start, torch.tensor(lengths, dtype=torch.int32),
        scale=0.1, window=rng.choice([None, 7, 600]), softcap=rng.choice([None, 5.0]),
        sinks=torch.randn(K * G) if rng.random() < 0.3 else None,
        max_query_len=max(queries), max_context_len=max(lengths),
    )  # fmt: skip


def draws(rng: random.Random) -> None:
    """Rows of logits with NaN and infinities under all filters."""
    S, V = rng.randint(1, 4), rng.choice([rng.randint(1, 70), rng.randint(1, 3000)])
    logits = torch.randn(S, V + 3)[:, 3:] * rng.choice([0.0, 1.0, 9.0])
    for bad in ("nan", "inf", "-inf"):
        if rng.random() < 0.3:
            logits[rng.randrange(S), rng.randrange(V)] = float(bad)
    numbers = (rng.choice([0.0, 0.3, 2.0]), rng.choice([1.0, 0.0, 0.7]), rng.choice([0.0, 1.0, 0.1]))
    temperature, top_p, min_p = (torch.full((S,), number) for number in numbers)
    top_k = torch.full((S,), rng.choice([0, 1, 40, 5000]), dtype=torch.int32)
    sample(logits, temperature, top_k, top_p, min_p, torch.randint(-9, 9, (S,)), torch.arange(S))
    all_finite(logits)


def states(rng: random.Random) -> None:
    """Layers with a state: prompts beside answers, some of which begin, and one without a slot."""
    lengths = [rng.choice([0, 1, 1, rng.randint(2, 40)]) for _ in range(rng.randint(1, 4))]
    T, S, H, G = sum(lengths), len(lengths), rng.randint(1, 3), rng.randint(1, 2)
    N, D, W = rng.randint(1, 70), rng.randint(1, 90), rng.randint(2, 8)
    slots = torch.randperm(S + 1)[:S].int()
    slots[rng.randrange(S)] -= rng.choice([0, S + 1])  # below 0: nobody's
    begins = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    contexts = torch.tensor([n + rng.choice([0, 5]) for n in lengths], dtype=torch.int32)
    whose, longest = (slots, begins, contexts), max(lengths)
    C = G * H * D
    gates = Gates(*torch.randn(2, T, C + 1)[..., 1:]) if rng.random() < 0.5 else None
    bias = torch.randn(C) if rng.random() < 0.5 else None
    x = causal_conv(
        torch.randn(T, C),
        torch.randn(C, W),
        torch.randn(S + 2, W - 1, C),
        *whose,
        max_query_len=longest,
        bias=bias,
        gates=gates,
    ).view(T, G * H, D)
    q, k = torch.randn(2, T, G, N)
    a, rate = torch.randn(T, G * H), torch.rand(G * H)
    gated_delta(
        q, k, x, Fading(a, a, rate, rate), torch.randn(S + 2, G * H, N, D), *whose, max_query_len=longest,
        in_turns=rng.random() < 0.5,
    )  # fmt: skip
    read = selective_scan(
        x, q, k, Steps(a, rate, rate, rate), torch.randn(S + 2, G * H, N, D), *whose, max_query_len=longest
    )
    gated_norm(read, torch.randn(T, C + 3)[:, 3:].view(T, G * H, D), torch.rand(G * H, D), 1e-5, gate_first=True)


def main(folder: str, isa: str, rounds: str = "40", seed: str = "") -> None:
    """Fuzz for a number of rounds."""
    seed = seed or str(random.getrandbits(32))
    sys.stderr.write(f"seed {seed}\n")
    rng = random.Random(int(seed))
    torch.manual_seed(int(seed))
    with using(isa, Path(folder)), dispatch.forced("native"):
        for number in range(int(rounds)):
            set_threads(1 + number % 3)
            for part in (linear, gate, experts, adapters, rows, attention, states, draws):
                part(rng)
    sys.stdout.write("all well\n")


if __name__ == "__main__":
    main(*sys.argv[1:5])
