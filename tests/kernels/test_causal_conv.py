"""Causal convolutions over sequences against their sums, written out, and what they keep for the next step."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from kernels.causal_conv import Gates, causal_conv
from tests.kernels.close import Close
from tests.kernels.sequences import Sequences

MIXED = ([5, 1, 40, 2, 1, 3], [0, 7, 2, 1, 0, 9])
Way = Literal["silu", "biased", "gated", "gated and biased"]


def sums(x: Tensor, weight: Tensor, before: Tensor) -> Tensor:
    """Sum shifted copies in float64: `x` [n, C] behind `before` [W - 1, C]."""
    whole = torch.cat((before, x)).double()
    return torch.stack([whole[tap : tap + len(x)] * weight[:, tap].double() for tap in range(weight.shape[1])]).sum(0)


def truth(x: Tensor, weight: Tensor, before: Tensor) -> Tensor:
    """Sum, and take the SiLU."""
    made = sums(x, weight, before)
    return made / (1 + torch.exp(-made))


def check(device: str, close: Close, seqs: Sequences, C: int, W: int, dtype: torch.dtype, way: Way = "silu") -> None:
    T = seqs.num_tokens
    # Three parts of a fused row, as a layer has them; three rows of nobody's.
    fused = torch.randn(T + 3, 3 * C, device=device).to(dtype)
    fused = fused if device == "cuda" or seqs.longest > 1 else fused[:T]
    first, last, x = fused.split(C, 1)
    gates = Gates(first, last) if "gated" in way else None
    weight = torch.randn(C, W, device=device).to(dtype)
    bias = torch.randn(C, device=device).to(dtype) if "biased" in way else None
    windows = seqs.states(W - 1, C)
    old = windows.cpu().clone()
    out = causal_conv(
        x, weight, windows, seqs.slots, seqs.query_start, seqs.context_lens, max_query_len=seqs.longest, bias=bias,
        gates=gates,
    )  # fmt: skip
    used = seqs.slots.tolist()
    for slot, before, part in zip(used, seqs.before, seqs.parts(), strict=True):
        behind = old[slot] if before else torch.zeros(W - 1, C)
        taken = x[part].cpu().float() if gates is None else x[part].cpu().float() * first[part].cpu().float()
        made = sums(taken, weight.cpu(), behind) + (0.0 if bias is None else bias.cpu().double())
        close(out[part], made / (1 + torch.exp(-made)) if gates is None else made * last[part].cpu().double())
        assert torch.equal(windows[slot].cpu(), torch.cat((behind, taken))[-(W - 1) :])
    free = [n for n in range(seqs.num_slots) if n not in used]
    assert windows[free].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("C", "W"), [(8, 4), (300, 2), (1031, 5)])
def test_a_mixed_step_equals_shifted_sums_and_keeps_its_last_inputs(
    device: str, close: Close, C: int, W: int, dtype: torch.dtype
) -> None:
    check(device, close, Sequences(*MIXED, device), C, W, dtype)


@pytest.mark.parametrize("C", [8, 300])
def test_a_step_of_one_token_each_equals_shifted_sums(device: str, close: Close, C: int) -> None:
    check(device, close, Sequences([1] * 5, [3, 0, 1, 90, 2], device), C, 4, torch.float32)


@pytest.mark.parametrize("steps", [MIXED, ([1] * 5, [3, 0, 1, 90, 2])], ids=["mixed", "decode"])
@pytest.mark.parametrize("way", ["biased", "gated", "gated and biased"])
def test_a_bias_stands_before_what_is_behind_the_sum_and_gates_stand_around_it(
    device: str, close: Close, way: Way, steps: tuple[list[int], list[int]]
) -> None:
    dtype = torch.float16 if way == "gated" else torch.float32
    check(device, close, Sequences(*steps, device), 300, 3, dtype, way)


def test_who_has_no_slot_begins_with_nothing_and_keeps_nothing(device: str, close: Close) -> None:
    seqs = Sequences([6], [0], device)
    x, weight, windows = torch.randn(6, 16, device=device), torch.randn(16, 4, device=device), seqs.states(3, 16)
    nobody = torch.full_like(seqs.slots, -1)
    out = causal_conv(x, weight, windows, nobody, seqs.query_start, seqs.context_lens + 5, max_query_len=6)
    close(out, truth(x.cpu(), weight.cpu(), torch.zeros(3, 16)))
    assert windows[:-1].isnan().all()


def test_wrong_arguments_are_named() -> None:
    seqs = Sequences([2], [0], "cpu")
    x, weight, windows = torch.zeros(2, 8), torch.zeros(8, 4), seqs.states(3, 8)
    sequences = (seqs.slots, seqs.query_start, seqs.context_lens)
    for match, args in {
        "x has shape": (x[0], weight, windows, *sequences),
        "weight has shape": (x, weight.t(), windows, *sequences),
        "windows is": (x, weight, windows.half(), *sequences),
        "slots is": (x, weight, windows, seqs.slots.long(), *sequences[1:]),
        "query_start is": (x, weight, windows, seqs.slots, seqs.query_start[:1], seqs.context_lens),
    }.items():
        with pytest.raises(ValueError, match=match):
            causal_conv(*args, max_query_len=2)
    with pytest.raises(ValueError, match="bias has shape"):
        causal_conv(x, weight, windows, *sequences, max_query_len=2, bias=torch.zeros(7))
    with pytest.raises(ValueError, match="the gate behind has shape"):
        causal_conv(x, weight, windows, *sequences, max_query_len=2, gates=Gates(x, x[:1]))
