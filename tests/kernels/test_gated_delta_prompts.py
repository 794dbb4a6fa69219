"""The gated delta rule in chunks against its recurrence in float64: long sequences beside short ones, what is rounded.

Tolerances are relative, over all numbers of one sequence. Float32 shows that the algebra is right, 16 bits what its
roundings cost: five of them meet in a number (a copy of the state, the residual, T, A and the change), each of 2^-9 /
sqrt(3) for bfloat16, which is 2.5e-3 to 4.7e-3 as simulated over 4,096 tokens, and does not grow with them. The last
rounding of the output alone is 1.7e-3. Float16 has an eighth of all that.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from kernels import dispatch
from kernels.fading import Fading
from kernels.gated_delta import EPS, gated_delta
from kernels.gated_delta_prompts import tiles_of, walk
from tests.kernels.sequences import Sequences
from tests.kernels.test_gated_delta import truth

TOLERANCE = {torch.float32: 6e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
WHERE = [
    pytest.param(("triton", "cpu"), id="interpreted"),
    pytest.param(("triton", "cuda"), id="compiled", marks=pytest.mark.gpu),
]
on_triton = pytest.mark.parametrize("device", WHERE, indirect=True)


class Problem:
    """Numbers of a step's tokens, and what each sequence's state was."""

    def __init__(self, seqs: Sequences, K: int, V: int, Dk: int, Dv: int, dtype: torch.dtype) -> None:
        T, device = seqs.num_tokens, seqs.slots.device
        self.seqs, self.groups = seqs, V // K
        row = torch.randn(T + 2, 2 * K * Dk + V * Dv + 8, device=device).to(dtype)
        row[T:] = float("nan")  # nobody's, as padding is
        q, k, v, _ = torch.split(row, [K * Dk, K * Dk, V * Dv, 8], dim=1)
        self.q, self.k, self.v = q.view(-1, K, Dk), k.view(-1, K, Dk), v.view(-1, V, Dv)
        a, b = torch.split(torch.randn(T + 2, 2 * V, device=device).to(dtype), [V, V], dim=1)
        self.fading = Fading(a, b, torch.rand(V, device=device), torch.randn(V, device=device))
        self.states = seqs.states(V, Dk, Dv)
        self.old = self.states.cpu().clone()

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Fading, Tensor, Tensor, Tensor, Tensor]:
        seqs = self.seqs
        return self.q, self.k, self.v, self.fading, self.states, seqs.slots, seqs.query_start, seqs.context_lens

    def check(self, out: Tensor, *, shortest: int = 1) -> None:
        limit = TOLERANCE[self.q.dtype]
        for slot, before, part in zip(self.seqs.slots.tolist(), self.seqs.before, self.seqs.parts(), strict=True):
            if part.stop - part.start < shortest:
                continue
            for head in range(self.v.shape[1]):
                f, of = self.fading, head // self.groups
                numbers = [f.a[part, head], f.b[part, head], f.rate[head], f.bias[head]]
                state = self.old[slot, head] if before else torch.zeros_like(self.old[slot, head])
                rows = (self.q[part, of].cpu(), self.k[part, of].cpu(), self.v[part, head].cpu())
                read, left = truth(*rows, [n.cpu() for n in numbers], state)
                assert _error(out[part, head], read) < limit
                assert _error(self.states[slot, head], left) < limit


def _error(found: Tensor, wanted: Tensor) -> float:
    return float((found.cpu().double() - wanted).norm() / wanted.norm())


def _kind(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float16  # the interpreter has no products of bfloat16


@on_triton
@pytest.mark.parametrize(("K", "V", "Dk", "Dv"), [(1, 2, 128, 40), (2, 2, 24, 16)])
def test_long_sequences_beside_short_ones_equal_the_recurrence(device: str, K: int, V: int, Dk: int, Dv: int) -> None:
    seqs = Sequences([3, 1, 64, 9, 0, 8, 70, 1], [5, 9, 0, 1, 0, 1, 64, 0], device)
    problem = Problem(seqs, K, V, Dk, Dv, _kind(device))
    problem.check(gated_delta(*problem.arguments(), max_query_len=80))
    free = [n for n in range(seqs.num_slots) if n not in seqs.slots.tolist()]
    assert problem.states[free].isnan().all()


@pytest.mark.parametrize("device", WHERE[:1], indirect=True)  # on a card float32 goes token by token
def test_in_float32_chunks_are_the_recurrence(device: str) -> None:
    problem = Problem(Sequences([4, 129, 20], [3, 7, 0], device), 1, 2, 16, 24, torch.float32)
    out = torch.full((problem.seqs.num_tokens, 2, 24), float("nan"))
    q, k, v, fading, states, slots, query_start, context_lens = problem.arguments()
    tiles = tiles_of(q, k, fading, query_start, num_value_heads=2, shortest=5, eps=EPS)
    walk(q, k, v, tiles, states, slots, query_start, context_lens, out)
    problem.check(out, shortest=5)
    assert out[:4].isnan().all()  # who is short is left to others


@on_triton
@pytest.mark.parametrize("rate", [0.0, 1e-3, 8.0])
def test_long_memories_and_short_ones_do_not_drift(device: str, rate: float) -> None:
    n, D = (8192, 128) if device == "cuda" else (300, 16)
    problem = Problem(Sequences([n], [5], device), 1, 1, D, D, _kind(device))
    problem.fading.rate.fill_(rate)
    problem.fading.b.add_(4.0)  # nearly all of a correction is made
    problem.k.add_(2.0)  # keys that are much alike
    problem.check(gated_delta(*problem.arguments(), max_query_len=n))


@on_triton
def test_a_prompt_cut_where_a_snapshot_is_wanted_goes_on_from_it(device: str) -> None:
    whole = Problem(Sequences([150], [0], device), 1, 1, 32, 32, _kind(device))
    out = torch.zeros(150, 1, 32)
    for begin, end in ((0, 48), (48, 50), (50, 150)):
        seqs = Sequences([end - begin], [begin], device)
        rows = slice(begin, end)
        fading = Fading(whole.fading.a[rows], whole.fading.b[rows], whole.fading.rate, whole.fading.bias)
        out[rows] = gated_delta(
            whole.q[rows], whole.k[rows], whole.v[rows], fading, whole.states, seqs.slots, seqs.query_start,
            seqs.context_lens, max_query_len=end - begin,
        ).cpu()  # fmt: skip
    whole.check(out)


@on_triton
def test_in_a_fixed_order_bits_do_not_depend_on_where_a_prompt_is_cut(device: str) -> None:
    found = []
    with dispatch.fixed_order():
        for cuts in ((0, 30), (0, 11, 30)):
            torch.manual_seed(5)
            problem = Problem(Sequences([30], [0], device), 1, 1, 16, 16, _kind(device))
            for begin, end in pairwise(cuts):
                seqs, rows = Sequences([end - begin], [begin], device), slice(begin, end)
                fading = Fading(
                    problem.fading.a[rows], problem.fading.b[rows], problem.fading.rate, problem.fading.bias
                )
                gated_delta(
                    problem.q[rows], problem.k[rows], problem.v[rows], fading, problem.states, seqs.slots,
                    seqs.query_start, seqs.context_lens, max_query_len=end - begin,
                )  # fmt: skip
            found.append(problem.states[problem.seqs.slots.tolist()].cpu())
    assert torch.equal(*found)


@on_triton
def test_keys_of_nothing_and_huge_values_are_numbers(device: str) -> None:
    problem = Problem(Sequences([20], [0], device), 1, 1, 16, 16, _kind(device))
    problem.k.zero_()
    problem.v.mul_(2e4)  # times the inverse length of such a key: more than float16 holds
    out = gated_delta(*problem.arguments(), max_query_len=20)[:20]
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(problem.states[problem.seqs.slots.tolist()].cpu(), torch.zeros(1, 1, 16, 16))


@on_triton
def test_who_has_no_slot_begins_with_zeros_and_keeps_nothing(device: str) -> None:
    problem = Problem(Sequences([12], [4], device), 1, 1, 16, 16, _kind(device))
    problem.states.fill_(float("nan"))
    problem.seqs.slots.fill_(-1)
    out = gated_delta(*problem.arguments(), max_query_len=12)[:12]
    assert bool(torch.isfinite(out).all())
    assert problem.states[:-1].isnan().all()
