"""The scan of Mamba 2 against its recurrence, token by token in float64, and the states that it leaves."""

import pytest
import torch
from torch import Tensor

from kernels.selective_scan import Steps, selective_scan
from tests.kernels.close import Close
from tests.kernels.sequences import Sequences

MIXED = ([5, 1, 66, 2], [0, 7, 2, 1])


def truth(x: Tensor, b: Tensor, c: Tensor, steps: list[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """One head: `x` [n, P], `b`, `c` [n, N], `steps` dt [n], rate, bias and skip, `state` [N, P]."""
    dt, rate, bias, skip = (each.double() for each in steps)
    x, b, c, state, reads = x.double(), b.double(), c.double(), state.double(), []
    for n in range(len(x)):
        length = torch.logaddexp(dt[n] + bias, torch.zeros((), dtype=torch.float64))
        state = state * torch.exp(-rate * length) + torch.outer(b[n], length * x[n])
        reads.append(c[n] @ state + skip * x[n])
    return torch.stack(reads), state


def check(
    device: str, close: Close, seqs: Sequences, H: int, G: int, N: int, P: int, dtype: torch.dtype = torch.float32
) -> None:
    T = seqs.num_tokens
    row = torch.randn(T, H * P + 2 * G * N + H + 3, device=device).to(dtype)  # a fused row, with more behind it
    x, b, c, dt, _ = torch.split(row, [H * P, G * N, G * N, H, 3], dim=1)
    x, b, c = x.view(T, H, P), b.view(T, G, N), c.view(T, G, N)
    rate, bias, skip = torch.rand(H, device=device) * 2, *torch.randn(2, H, device=device)
    states = seqs.states(H, N, P)
    old = states.cpu().clone()
    out = selective_scan(
        x, b, c, Steps(dt, rate, bias, skip), states, seqs.slots, seqs.query_start, seqs.context_lens,
        max_query_len=seqs.longest,
    )  # fmt: skip
    used, wanted = seqs.slots.tolist(), torch.empty(T, H, P, dtype=torch.float64)
    for slot, before, part in zip(used, seqs.before, seqs.parts(), strict=True):
        after = torch.empty(H, N, P, dtype=torch.float64)
        for head in range(H):
            behind = old[slot, head] if before else torch.zeros(N, P)
            numbers, of = [dt[part, head], rate[head], bias[head], skip[head]], head // (H // G)
            own = [each.cpu() for each in numbers]
            wanted[part, head], after[head] = truth(
                x[part, head].cpu(), b[part, of].cpu(), c[part, of].cpu(), own, behind
            )
        close(states[slot], after, loose=2)
    close(out, wanted, loose=2)
    free = [n for n in range(seqs.num_slots) if n not in used]
    assert states[free].isnan().all()


@pytest.mark.parametrize(("H", "G", "N", "P"), [(2, 1, 16, 32), (3, 3, 40, 17)])
def test_a_mixed_step_equals_the_recurrence(device: str, close: Close, H: int, G: int, N: int, P: int) -> None:
    check(device, close, Sequences(*MIXED, device), H, G, N, P)


@pytest.mark.parametrize(("N", "P"), [(128, 64), (24, 40)])
def test_a_step_of_one_token_each_equals_the_recurrence(device: str, close: Close, N: int, P: int) -> None:
    check(device, close, Sequences([1] * 5, [3, 0, 1, 90, 2], device), 4, 2, N, P)


def test_half_precision_is_rounded_at_the_end_alone(device: str, close: Close) -> None:
    check(device, close, Sequences([20, 1], [4, 6], device), 2, 1, 32, 32, torch.float16)


def test_steps_so_long_that_nothing_is_left_and_so_short_that_all_is_are_numbers(device: str, close: Close) -> None:
    seqs = Sequences([70], [0], device)
    x, b, c = (torch.randn(70, 1, 16, device=device) for _ in range(3))
    one, none = torch.ones(1, device=device), torch.zeros(1, device=device)
    for length in (50.0, -1e4):
        states, dt = seqs.states(1, 16, 16), torch.full((70, 1), length, device=device)
        out = selective_scan(
            x, b, c, Steps(dt, one * 2, none, one), states, seqs.slots, seqs.query_start, seqs.context_lens,
            max_query_len=70,
        )  # fmt: skip
        own = [dt[:, 0].cpu(), one[0].cpu() * 2, none[0].cpu(), one[0].cpu()]
        close(out[:, 0], truth(x[:, 0].cpu(), b[:, 0].cpu(), c[:, 0].cpu(), own, torch.zeros(16, 16))[0], loose=3)


def test_who_has_no_slot_begins_with_zeros_and_keeps_nothing(device: str) -> None:
    seqs = Sequences([9], [4], device)
    x, b, c = (torch.randn(9, 1, 16, device=device) for _ in range(3))
    dt, nobody = torch.zeros(9, 1, device=device), torch.full_like(seqs.slots, -1)
    states = torch.full((4, 1, 16, 16), float("nan"), device=device)
    steps = Steps(dt, dt[0], dt[0], dt[0])
    out = selective_scan(x, b, c, steps, states, nobody, seqs.query_start, seqs.context_lens, max_query_len=9)
    assert bool(torch.isfinite(out).all())
    assert states[:-1].isnan().all()


def test_wrong_arguments_are_named() -> None:
    seqs = Sequences([2], [0], "cpu")
    x, b, dt, one = torch.zeros(2, 4, 8), torch.zeros(2, 2, 6), torch.zeros(2, 4), torch.zeros(4)
    steps, states = Steps(dt, one, one, one), seqs.states(4, 6, 8)
    for match, args in {
        "must be .T, H, P. and": (x, b, b[:1], steps, states),
        "not a multiple": (x, torch.zeros(2, 3, 6), torch.zeros(2, 3, 6), steps, states),
        "b must be contiguous": (x, torch.zeros(2, 6, 2).transpose(1, 2), b, steps, states),
        "skip has shape": (x, b, b, Steps(dt, one, one, one[:1]), states),
        "states is": (x, b, b, steps, states[:, :1]),
    }.items():
        with pytest.raises(ValueError, match=match):
            selective_scan(*args, seqs.slots, seqs.query_start, seqs.context_lens, max_query_len=2)
