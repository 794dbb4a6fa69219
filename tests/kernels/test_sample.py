"""Draws: greedy, filtered and noisy, with odd logits, in the same tokens by kernel and reference."""

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import noise
from kernels import sample as op
from kernels.sample import sample

Values = float | Tensor  # of all rows, or of each


def params(
    S: int,
    device: str = "cpu",
    temperature: Values = 1.0,
    top_k: Values = 0,
    top_p: Values = 1.0,
    min_p: Values = 0.0,
    seed: Values = 7,
    position: Values = 0,
) -> list[Tensor]:
    def row(value: Values, dtype: torch.dtype) -> Tensor:
        return torch.as_tensor(value, dtype=dtype).expand(S).contiguous().to(device)

    return [
        row(temperature, torch.float32), row(top_k, torch.int32), row(top_p, torch.float32), row(min_p, torch.float32),
        row(seed, torch.int64), row(position, torch.int64),
    ]  # fmt: skip


def allowed(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[Tensor, Tensor, Tensor]:
    """What the filters keep, by definition, in float64: mask, exact probabilities, tokens at a border."""
    x = logits.double() / temperature
    keep = torch.ones_like(x, dtype=torch.bool)
    if 0 < top_k < len(x):
        keep &= x >= x.sort(descending=True).values[top_k - 1]
    probs = torch.where(keep, x, -math.inf).softmax(-1)
    above = torch.stack([probs[probs > value].sum() for value in probs])
    near = (above - top_p).abs() < 1e-5 if top_p < 1 else torch.zeros_like(keep)
    if top_p < 1:
        keep &= (above < top_p) | (above == 0)
    if min_p > 0:
        ratio = (x - x.max()).exp()
        near |= (ratio - min_p).abs() < 1e-5
        keep &= ratio >= min_p
    return keep, torch.where(keep, x, -math.inf).softmax(-1), near


def test_temperature_zero_takes_the_lowest_of_the_best(device: str) -> None:
    logits = torch.randn(4, 5000, device=device)
    logits[:, [77, 4100]] = 9.0
    logits[3, 4999] = 10.0
    assert sample(logits, *params(4, device, temperature=0.0)).tolist() == [77, 77, 77, 4999]


def test_nan_and_empty_rows_give_a_valid_id(device: str) -> None:
    logits = torch.full((4, 300), float("-inf"), device=device)
    logits[1] = float("nan")
    logits[2, 250] = 1.0
    logits[2, 3] = float("nan")
    for options in ({"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}):
        assert sample(logits, *params(4, device, **options)).tolist() == [0, 0, 250, 0]


def test_both_zeros_are_equal(device: str) -> None:
    logits = torch.where(torch.arange(300) % 2 == 0, 0.0, -0.0).expand(5, 300).contiguous().to(device)
    everything = sample(logits, *params(5, device, position=torch.arange(5))).tolist()
    for options in ({"top_k": 5}, {"top_k": 299}, {"top_p": 0.2}, {"min_p": 1.0}):
        assert sample(logits, *params(5, device, position=torch.arange(5), **options)).tolist() == everything


@pytest.mark.parametrize(("V", "top_k", "top_p"), [(60, 5, 0.5), (60, 0, 0.5), (600, 590, 0.5)])
def test_an_infinite_logit_is_drawn_and_holds_up_no_other_row(device: str, V: int, top_k: int, top_p: float) -> None:
    logits = torch.randn(3, V, device=device)
    options = params(3, device, top_k=top_k, top_p=top_p)
    sound = sample(logits, *options).tolist()
    logits[0, V - 20] = float("inf")
    logits[1, 1::2] = float("inf")
    assert sample(logits, *options).tolist() == [V - 20, 1, sound[2]]


@pytest.mark.parametrize("V", [1, 5, 1000, 4097])
def test_kernel_and_reference_draw_the_same_tokens(device: str, V: int) -> None:
    S = 10
    logits = torch.randn(S, V) * torch.rand(S, 1) * 8
    logits[5] = logits[5].bfloat16().float()  # many equal logits
    args = [
        torch.where(torch.arange(S) % 5 == 0, 0.0, torch.rand(S) + 0.3),
        torch.randint(0, 300, (S,), dtype=torch.int32) * (torch.arange(S) % 3 > 0).int(),
        torch.where(torch.arange(S) % 4 == 0, 1.0, torch.rand(S)),
        torch.rand(S) * 0.1 * (torch.arange(S) % 2),
        torch.randint(-(2**62), 2**62, (S,)),
        torch.randint(0, 2**40, (S,)),
    ]
    got = sample(logits.to(device), *(arg.to(device) for arg in args)).cpu()
    expected = op.reference(logits, *args)
    assert got.tolist() == expected.tolist()


def noisiest(logits: Tensor, keep: Tensor, near: Tensor, temperature: float, seed: int, position: int) -> int | None:
    """Which kept token is the noisiest, in float64; None where roundings or a border decide that."""
    ids = torch.arange(len(logits), dtype=torch.int32)
    noisy = logits.double() / temperature + noise.reference(torch.tensor([seed]), torch.tensor([position]), ids)[0]
    best = torch.where(keep | near, noisy, -math.inf).topk(min(2, len(logits)))
    if bool(near[best.indices].any()) or bool((best.values[:-1] - best.values[1:] < 1e-4).any()):
        return None
    return int(best.indices[0])


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    V=st.integers(1, 700),
    spread=st.floats(0.0, 12.0),
    temperature=st.floats(0.0625, 4.0, width=32),
    top_k=st.one_of(st.just(0), st.integers(1, 700)),
    top_p=st.one_of(st.just(1.0), st.floats(0.0, 1.0)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
    kind=st.sampled_from(["any", "equal ones", "one high", "no others"]),
)
def test_a_draw_is_the_noisiest_of_what_the_filters_keep(
    device: str, V: int, spread: float, temperature: float, top_k: int, top_p: float, min_p: float, kind: str
) -> None:  # fmt: skip
    logits = torch.randn(V) * spread
    logits = logits.round() if kind == "equal ones" else logits
    logits[V // 2] = 40.0 if kind == "one high" else logits[V // 2]
    logits[V // 2 + 1 :] = -math.inf if kind == "no others" else logits[V // 2 + 1 :]
    keep, _, near = allowed(logits, temperature, top_k, top_p, min_p)
    [token] = sample(logits[None].to(device), *params(1, device, temperature, top_k, top_p, min_p)).tolist()
    expected = noisiest(logits, keep, near, temperature, 7, 0)
    assert (keep | near)[token] if expected is None else token == expected


@pytest.mark.parametrize("against", [False, True], ids=["flat", "the noisier the less likely"])
@pytest.mark.parametrize(
    ("V", "options"), [(40, {"top_p": 0.5}), (40, {"top_p": 0.1}), (1100, {"top_k": 1070})], ids=["p", "small p", "k"]
)
def test_filters_that_keep_many(device: str, V: int, options: dict[str, Any], against: bool) -> None:
    """Rows whose noisiest tokens are mostly out; and the worst for them, where each pick is but a little likelier."""
    S = 2
    args = params(S, temperature=1.25, position=torch.arange(S), **options)
    worst = noise.reference(args[4], args[5], torch.arange(V, dtype=torch.int32)) * -1.125
    logits = worst if against else torch.randn(S, V)
    drawn = sample(logits.to(device), *(arg.to(device) for arg in args)).tolist()
    for row, token in enumerate(drawn):
        keep, _, near = allowed(logits[row], 1.25, options.get("top_k", 0), options.get("top_p", 1.0), 0.0)
        expected = noisiest(logits[row], keep, near, 1.25, 7, row)
        assert (keep | near)[token] if expected is None else token == expected


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 9},
        {"top_p": 0.8},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        {"min_p": 0.2},
    ],
)
def test_draws_follow_the_exact_distribution(options: dict[str, Any]) -> None:
    """Chi-square of 10,000 draws; seeds are fixed, so this never fails by chance."""
    V, n = 40, 10_000
    logits = torch.randn(V, generator=torch.Generator().manual_seed(3)) * 2
    keep, probs, _ = allowed(
        logits,
        options.get("temperature", 1.0),
        options.get("top_k", 0),
        options.get("top_p", 1.0),
        options.get("min_p", 0),
    )
    drawn = op.reference(logits.expand(n, V), *params(n, **options, seed=11, position=torch.arange(n)))
    counts = torch.bincount(drawn, minlength=V).double()
    assert not counts[~keep].any()
    expected = probs[keep] * n
    chi2, freedom = float(((counts[keep] - expected) ** 2 / expected).sum()), int(keep.sum()) - 1
    assert chi2 < freedom + 4 * math.sqrt(2 * freedom) + 4


def test_noise_is_gumbel_and_independent_over_ids_positions_and_seeds() -> None:
    ids, zero = torch.arange(1 << 16), torch.zeros(3, dtype=torch.int64)
    by_position = noise.reference(zero + 5, torch.tensor([0, 1, 2]), ids).double()
    by_seed = noise.reference(torch.tensor([0, 1, 1 << 40]), zero, ids).double()
    for rows in (by_position, by_seed):
        euler = 0.5772156649
        assert (rows.mean(-1) - euler).abs().max() < 0.02  # standard error 0.005
        assert (rows.var(-1) - math.pi**2 / 6).abs().max() < 0.05
        assert (torch.corrcoef(rows) - torch.eye(3)).abs().max() < 0.02
        neighbours = torch.corrcoef(torch.stack([rows[0, :-1], rows[0, 1:]]))[0, 1]
        assert abs(neighbours) < 0.02
    uniform = torch.exp(-torch.exp(-by_position[0]))
    counts = torch.histc(uniform.float(), 64, 0, 1).double()
    assert float(((counts - 1024) ** 2 / 1024).sum()) < 63 + 4 * math.sqrt(126)


def test_a_row_draws_the_same_in_any_batch(device: str) -> None:
    logits = torch.randn(3, 900, device=device)
    k, p = torch.tensor([30, 0, 300]), torch.tensor([0.9, 0.6, 1.0])
    args = params(3, device, temperature=0.9, top_k=k, top_p=p, seed=torch.arange(3), position=torch.arange(3) * 3)
    together = sample(logits, *args).tolist()
    alone = [sample(logits[s : s + 1], *(a[s : s + 1] for a in args)).item() for s in range(3)]
    assert together == alone


def test_wrong_arguments_are_named() -> None:
    names = ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
    for i, name in enumerate(names):
        args = params(2)
        args[i] = args[i][:1]
        with pytest.raises(ValueError, match=name):
            sample(torch.zeros(2, 9), *args)
    with pytest.raises(ValueError, match="logits"):
        sample(torch.zeros(9), *params(2))
