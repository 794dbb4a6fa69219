"""The gated delta rule against its recurrence, token by token in float64, and the states that it leaves."""

import math

import pytest
import torch
from torch import Tensor

from kernels.fading import Fading
from kernels.gated_delta import gated_delta
from tests.kernels.close import Close
from tests.kernels.sequences import Sequences

MIXED = ([5, 1, 70, 2, 1, 129], [0, 7, 2, 1, 0, 64])


def truth(q: Tensor, k: Tensor, v: Tensor, fading: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """One head: `q`, `k` [n, Dk], `v` [n, Dv], `fading` a and b [n], rate and bias, `state` [Dk, Dv]."""
    a, b, rate, bias = (each.double() for each in fading)
    state, reads = state.double(), []
    for n in range(len(v)):
        query, key = (x[n].double() / (x[n].double().square().sum() + 1e-6).sqrt() for x in (q, k))
        state = state * torch.exp(-rate * torch.log1p(torch.exp(a[n] + bias)))
        wanted = v[n].double() - key @ state
        state = state + torch.outer(key, wanted) / (1 + torch.exp(-b[n]))
        reads.append(query @ state / math.sqrt(q.shape[1]))
    return torch.stack(reads), state


def check(
    device: str, close: Close, seqs: Sequences, K: int, V: int, Dk: int, Dv: int, dtype: torch.dtype = torch.float32,
    *, in_turns: bool = False,
) -> None:  # fmt: skip
    T = seqs.num_tokens
    row = torch.randn(T, 2 * K * Dk + V * Dv + 5, device=device).to(dtype)  # a fused row, with more behind it
    q, k, v, _ = torch.split(row, [K * Dk, K * Dk, V * Dv, 5], dim=1)
    q, k, v = q.view(T, K, Dk), k.view(T, K, Dk), v.view(T, V, Dv)
    both = torch.randn(T, 2 * V, device=device).to(dtype) * 2
    fading = Fading(both[:, :V], both[:, V:], torch.rand(V, device=device) * 2, torch.randn(V, device=device))
    states = seqs.states(V, Dk, Dv)
    old = states.cpu().clone()
    out = gated_delta(
        q, k, v, fading, states, seqs.slots, seqs.query_start, seqs.context_lens, max_query_len=seqs.longest,
        in_turns=in_turns,
    )  # fmt: skip
    used, wanted = seqs.slots.tolist(), torch.empty(T, V, Dv, dtype=torch.float64)
    for slot, before, part in zip(used, seqs.before, seqs.parts(), strict=True):
        after = torch.empty(V, Dk, Dv, dtype=torch.float64)
        for head in range(V):
            behind = old[slot, head] if before else torch.zeros(Dk, Dv)
            numbers = [fading.a[part, head], fading.b[part, head], fading.rate[head], fading.bias[head]]
            of, own = head % K if in_turns else head // (V // K), [n.cpu() for n in numbers]
            read, left = truth(q[part, of].cpu(), k[part, of].cpu(), v[part, head].cpu(), own, behind)
            wanted[part, head], after[head] = read, left
        close(states[slot], after, loose=2)
    close(out, wanted, loose=2)
    free = [n for n in range(seqs.num_slots) if n not in used]
    assert states[free].isnan().all()


@pytest.mark.parametrize(("K", "V", "Dk", "Dv"), [(1, 2, 16, 32), (2, 2, 24, 40), (1, 3, 128, 17)])
def test_a_mixed_step_equals_the_recurrence(device: str, close: Close, K: int, V: int, Dk: int, Dv: int) -> None:
    check(device, close, Sequences(*MIXED, device), K, V, Dk, Dv)


@pytest.mark.parametrize(("Dk", "Dv"), [(16, 64), (40, 24)])
def test_a_step_of_one_token_each_equals_the_recurrence(device: str, close: Close, Dk: int, Dv: int) -> None:
    check(device, close, Sequences([1] * 5, [3, 0, 1, 90, 2], device), 2, 4, Dk, Dv)


def test_key_heads_may_take_turns_with_value_heads(device: str, close: Close) -> None:
    check(device, close, Sequences([9, 1], [4, 6], device), 2, 6, 16, 24, in_turns=True)


def test_half_precision_is_rounded_at_the_end_alone(device: str, close: Close) -> None:
    check(device, close, Sequences([8, 1], [4, 6], device), 1, 2, 32, 32, torch.float16)


def test_a_strong_fade_leaves_weak_ones_behind_it_exact(device: str, close: Close) -> None:
    seqs = Sequences([40], [0], device)
    q, k, v = (torch.randn(40, 1, 16, device=device) for _ in range(3))
    a = torch.full((40, 1), -3.0, device=device)
    a[5] = 1e6  # a sum with this in it would know no more than tenths
    ones, zeros = torch.ones(1, device=device), torch.zeros(1, device=device)
    states = seqs.states(1, 16, 16)
    out = gated_delta(
        q, k, v, Fading(a, a * 0, ones, zeros), states, seqs.slots, seqs.query_start, seqs.context_lens,
        max_query_len=40,
    )  # fmt: skip
    numbers = [a[:, 0].cpu(), a[:, 0].cpu() * 0, torch.ones(()), torch.zeros(())]
    close(out[:, 0], truth(q[:, 0].cpu(), k[:, 0].cpu(), v[:, 0].cpu(), numbers, torch.zeros(16, 16))[0], loose=9)


def test_states_that_fade_at_once_and_never_are_numbers(device: str, close: Close) -> None:
    seqs = Sequences([70], [0], device)
    q, k, v = (torch.randn(70, 1, 16, device=device) for _ in range(3))
    a = torch.full((70, 1), 1e4, device=device)
    for rate in (0.0, 16.0):
        states = seqs.states(1, 16, 16)
        rates = torch.full((1,), rate, device=device)
        fading = Fading(a, torch.zeros_like(a), rates, torch.zeros(1, device=device))
        out = gated_delta(
            q, k, v, fading, states, seqs.slots, seqs.query_start, seqs.context_lens, max_query_len=70
        )  # fmt: skip
        flat = [a[:, 0].cpu() * (rate > 0), a[:, 0].cpu() * 0, rates[0].cpu(), torch.zeros(())]
        close(out[:, 0], truth(q[:, 0].cpu(), k[:, 0].cpu(), v[:, 0].cpu(), flat, torch.zeros(16, 16))[0], loose=3)


def test_who_has_no_slot_begins_with_zeros_and_keeps_nothing(device: str) -> None:
    seqs = Sequences([9], [4], device)
    q, k, v = (torch.randn(9, 1, 16, device=device) for _ in range(3))
    a = torch.zeros(9, 1, device=device)
    fading, nobody = Fading(a, a, a[0], a[0]), torch.full_like(seqs.slots, -1)
    states = torch.full((4, 1, 16, 16), float("nan"), device=device)
    out = gated_delta(q, k, v, fading, states, nobody, seqs.query_start, seqs.context_lens, max_query_len=9)
    assert bool(torch.isfinite(out).all())
    assert states[:-1].isnan().all()


def test_wrong_arguments_are_named() -> None:
    seqs = Sequences([2], [0], "cpu")
    q = torch.zeros(2, 2, 8)
    a, one = torch.zeros(2, 2), torch.zeros(2)
    fading, states = Fading(a, a, one, one), seqs.states(2, 8, 8)
    for match, args in {
        "must be .T, K, Dk. twice": (q, q[:1], q, fading, states),
        "not a multiple": (q, q, torch.zeros(2, 3, 8), fading, states),
        "k must be contiguous": (q, torch.zeros(2, 8, 2).transpose(1, 2), q, fading, states),
        "rate has shape": (q, q, q, Fading(a, a, one[:1], one), states),
        "states is": (q, q, q, fading, states[:, :1]),
    }.items():
        with pytest.raises(ValueError, match=match):
            gated_delta(*args, seqs.slots, seqs.query_start, seqs.context_lens, max_query_len=2)
