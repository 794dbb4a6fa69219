"""Penalties, biases and masks: each row gets what it asked for, and masks win."""

import pytest
import torch
from torch import Tensor

from kernels.penalties import Penalties, apply_penalties, count_tokens

INF = float("inf")


def pack(mask: Tensor) -> Tensor:
    """Bool [n, V] -> int32 words [n, ceil(V/32)]."""
    n, V = mask.shape
    bits = torch.zeros(n, -(-V // 32) * 32, dtype=torch.int64)
    bits[:, :V] = mask
    words = (bits.view(n, -1, 32) << torch.arange(32)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def oracle(
    logits: Tensor,
    row: int,
    *,
    prompt: Tensor,
    counts: list[int] | None,
    repetition: float,
    frequency: float,
    presence: float,
    bias: dict[int, float],
    stops: list[int],
    allowed: Tensor | None,
    forced: int,
) -> Tensor:
    """One row, token by token, as the definitions read."""
    out = []
    for token, x in enumerate(logits[row].double().tolist()):
        count = counts[token] if counts is not None else 0
        if counts is not None:
            if prompt[token] or count:
                x = x / repetition if x > 0 else x * repetition
            x -= frequency * count + presence * (count > 0)
        x += bias.get(token, 0.0)
        if token in stops or (allowed is not None and not allowed[token]):
            x = -INF
        if forced >= 0:
            x = 0.0 if token == forced else -INF
        out.append(x)
    return torch.tensor(out)


@pytest.mark.parametrize("V", [70, 2100])
@pytest.mark.parametrize("count_dtype", [torch.int16, torch.int32])
def test_every_row_gets_what_it_asked_for_and_masks_win(device: str, V: int, count_dtype: torch.dtype) -> None:
    S, R = 6, 4
    logits = torch.randn(S, V) * 5
    state = torch.tensor([2, -1, 0, 3, -1, 1], dtype=torch.int32)
    grammar = torch.tensor([-1, 1, 0, -1, -1, 1], dtype=torch.int32)
    forced = torch.tensor([-1, -1, -1, V - 1, -1, -1], dtype=torch.int32)
    hold = torch.tensor([1, 0, 1, 1, 0, 0], dtype=torch.int32)
    prompt, counts = torch.rand(R, V) < 0.2, (torch.rand(R, V) < 0.1) * torch.randint(1, 300, (R, V))
    allowed = torch.rand(2, V) < 0.5
    repetition, frequency, presence = torch.rand(S) + 0.5, torch.rand(S), torch.randn(S)
    bias_ids = torch.stack([torch.randperm(V)[:9] for _ in range(S)]).int()
    bias_ids[:, 7:] = -1
    bias = torch.randn(S, 9) * 50
    stop_ids = torch.stack([torch.randperm(V)[:3] for _ in range(S)]).int()
    stop_ids[:, 2] = -1
    got = logits.clone().to(device)
    apply_penalties(
        got,
        Penalties(
            **{
                name: tensor.to(device)
                for name, tensor in {
                    "state": state, "prompt_mask": pack(prompt), "output_counts": counts.to(count_dtype),
                    "repetition": repetition, "frequency": frequency, "presence": presence, "bias_ids": bias_ids,
                    "bias": bias, "stop_ids": stop_ids, "hold_stops": hold, "grammar": grammar,
                    "allowed": pack(allowed), "forced": forced,
                }.items()
            }
        ),
    )  # fmt: skip
    for row in range(S):
        line = int(state[row])
        expected = oracle(
            logits, row,
            prompt=prompt[line], counts=counts[line].tolist() if line >= 0 else None,
            repetition=float(repetition[row]), frequency=float(frequency[row]), presence=float(presence[row]),
            bias=dict(zip(bias_ids[row, :7].tolist(), bias[row, :7].tolist(), strict=True)),
            stops=stop_ids[row, :2].tolist() if hold[row] else [],
            allowed=allowed[grammar[row]] if grammar[row] >= 0 else None, forced=int(forced[row]),
        )  # fmt: skip
        torch.testing.assert_close(got[row].cpu().double(), expected.double(), rtol=1e-5, atol=1e-4)


def test_rows_that_ask_for_nothing_are_left_to_the_bit(device: str) -> None:
    logits = torch.randn(3, 500, device=device)
    before = logits.clone()
    apply_penalties(logits, Penalties())
    off = torch.full((3,), -1, dtype=torch.int32, device=device)
    apply_penalties(
        logits,
        Penalties(
            state=off, output_counts=torch.ones(1, 500, dtype=torch.int32, device=device),
            frequency=torch.ones(3, device=device), grammar=off,
            allowed=torch.zeros(1, 16, dtype=torch.int32, device=device), forced=off,
        ),
    )  # fmt: skip
    assert torch.equal(logits, before)


def test_tokens_are_counted_where_their_state_lies(device: str) -> None:
    counts = torch.zeros(3, 40, dtype=torch.int16, device=device)
    ids = torch.tensor([[5, 5, 39], [7, -1, 7], [1, 2, 3]], device=device)
    count_tokens(counts, torch.tensor([2, 0, -1], dtype=torch.int32, device=device), ids)
    expected = torch.zeros(3, 40, dtype=torch.int16)
    expected[2, 5], expected[2, 39], expected[0, 7] = 2, 1, 2
    assert torch.equal(counts.cpu(), expected)


def test_wrong_arguments_are_named() -> None:
    logits, i32 = torch.zeros(2, 64), torch.zeros(2, dtype=torch.int32)
    for name, fields in {
        "state": {"state": i32.long()},
        "prompt_mask": {"prompt_mask": torch.zeros(1, 3, dtype=torch.int32)},
        "output_counts": {"output_counts": torch.zeros(1, 63, dtype=torch.int32)},
        "repetition": {"repetition": torch.zeros(3)},
        "bias_ids and bias": {"bias_ids": torch.zeros(2, 1, dtype=torch.int32)},
        "stop_ids": {"stop_ids": i32, "hold_stops": i32},
        "grammar and allowed": {"grammar": i32},
    }.items():
        with pytest.raises(ValueError, match=name):
            apply_penalties(logits, Penalties(**fields))
    with pytest.raises(ValueError, match="logits"):
        apply_penalties(logits.half(), Penalties())
