"""Products with packed weights: integer sums of rounded activations, the same for a row in any batch."""

import pytest
import torch

from kernels import dispatch
from kernels.activation import CLAMPED, GELU, GELU_TANH, SILU, act_and_mul
from kernels.native import record
from kernels.native.library import set_threads
from kernels.native.packed_weight import FORMATS
from kernels.quantized_linear import _rounding, gated_rounded, gates, quantized_linear, rounded, values
from tests.kernels.close import Close
from tests.kernels.native.blocks import random_weight


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize(("T", "N", "K"), [(1, 16, 256), (13, 45, 512), (70, 100, 256), (33, 20, 1280)])
def test_products_are_those_of_rounded_activations(
    isa: str, close: Close, format_name: str, T: int, N: int, K: int
) -> None:
    weight, truth = random_weight(format_name, N, K)
    x = torch.randn(T, K)
    bias = torch.randn(N)
    close(quantized_linear(x, [weight], bias), values(rounded(x)).double() @ truth.T + bias.double())


@pytest.mark.parametrize("format_name", FORMATS)
def test_rows_depend_neither_on_the_batch_nor_on_the_threads(isa: str, format_name: str) -> None:
    weight, _ = random_weight(format_name, 600, 1024)
    x = torch.randn(31, 1024)
    set_threads(2)
    try:
        together = quantized_linear(x, [weight])
    finally:
        set_threads(1)
    alone = torch.cat([quantized_linear(row[None], [weight]) for row in x])
    set_threads(None)
    assert torch.equal(together, alone)


def test_stacked_weights_of_several_formats_fill_one_row(isa: str, close: Close) -> None:
    parts = [random_weight("Q4_K", 48, 256), random_weight("Q6_K", 21, 256), random_weight("Q4_0", 16, 256)]
    x = torch.randn(5, 256)
    truth = torch.cat([numbers for _, numbers in parts])
    close(quantized_linear(x, [weight for weight, _ in parts]), values(rounded(x)).double() @ truth.T)


@pytest.mark.parametrize("format_name", ["Q4_0", "Q6_K"])
@pytest.mark.parametrize(("T", "act"), [(1, SILU), (7, GELU), (16, GELU_TANH), (3, CLAMPED), (150, SILU)])
def test_a_gate_rounds_what_the_separate_calls_would(isa: str, format_name: str, T: int, act: int) -> None:
    """The same bits, whether a float of the gate is ever written or not."""
    up, down = random_weight(format_name, 2 * 96, 256)[0], random_weight("Q4_1", 40, 96)[0]
    x, bias = torch.randn(T, 256), torch.randn(2 * 96)
    for threads in (1, 3):
        set_threads(threads)
        fused = quantized_linear(gated_rounded(x, up, act, bias), [down])
        assert torch.equal(fused, quantized_linear(act_and_mul(quantized_linear(x, [up], bias), act), [down]))
    set_threads(None)


def test_a_gates_reference_means_the_same(isa: str, close: Close) -> None:
    weight, _ = random_weight("Q5_0", 128, 64)
    x = torch.randn(5, 64)
    fast = gated_rounded(x, weight, SILU)
    with dispatch.forced("reference"):
        slow = gated_rounded(x, weight, SILU)
        down, _ = random_weight("Q8_0", 32, 64)
        truth = quantized_linear(slow, [down]).double()
    close(values(fast), values(slow).double(), loose=2)  # numbers next to a tie are rounded apart
    close(fast.scales, slow.scales.double(), loose=2)
    close(quantized_linear(fast, [down]), truth, loose=2)


def test_a_gate_of_no_whole_blocks_is_refused(isa: str) -> None:
    weight, _ = random_weight("Q4_1", 80, 64)
    assert not gates(weight)
    with pytest.raises(ValueError, match="80 outputs"):
        gated_rounded(torch.ones(2, 64), weight, SILU)
    assert gated_rounded(torch.ones(0, 64), random_weight("Q4_1", 64, 64)[0], SILU).q.shape == (0, 32)


def test_a_bad_row_of_a_gate_spoils_itself_alone(isa: str) -> None:
    up, down = random_weight("Q4_1", 128, 64)[0], random_weight("Q4_1", 16, 64)[0]
    x = torch.randn(3, 64)
    want = quantized_linear(gated_rounded(x, up, SILU), [down])
    x[1, 5] = float("nan")
    got = quantized_linear(gated_rounded(x, up, SILU), [down])
    assert torch.equal(got[[0, 2]], want[[0, 2]])
    assert not torch.isfinite(got[1]).any()


def test_the_reference_means_the_same(isa: str, close: Close) -> None:
    weight, _ = random_weight("Q5_1", 40, 96)
    x = torch.randn(6, 96)
    fast = quantized_linear(x, [weight])
    with dispatch.forced("reference"):
        close(quantized_linear(x, [weight]), fast.double())


def test_extreme_rows_stay_exact_and_bad_ones_stay_bad(isa: str) -> None:
    weight, truth = random_weight("Q8_0", 32, 64)
    x = torch.zeros(4, 64)
    x[1, 3] = 1e30
    x[2, 40] = float("nan")
    x[3, 40] = float("inf")
    y = quantized_linear(x, [weight])
    assert not y[0].any()
    assert torch.allclose(y[1].double(), truth[:, 3] * 1e30, rtol=1e-5)
    assert not torch.isfinite(y[2:]).any()


@pytest.mark.parametrize("size", [1e-45, 1e-38, 3e-37, 4e-37])
def test_blocks_next_to_nothing_are_rounded_as_the_reference_rounds_them(isa: str, size: float) -> None:
    """127 divided by what they hold may be no float."""
    x = torch.tensor([0.0, size, -size, size / 2] * 8 + [1.0] * 32)[None]
    found, rounding = _rounding(x)
    record.call([rounding], (x, *found))
    want = rounded(x)
    assert torch.isfinite(want.scales).all()
    assert torch.equal(found.q, want.q)
    assert torch.equal(found.scales, want.scales)


def test_rows_cut_out_of_wider_ones_are_read_in_place(isa: str) -> None:
    weight, _ = random_weight("Q4_1", 32, 64)
    wide = torch.randn(3, 128)
    assert torch.equal(
        quantized_linear(wide[:, 32:96], [weight]), quantized_linear(wide[:, 32:96].contiguous(), [weight])
    )


def test_no_rows_give_no_rows(isa: str) -> None:
    weight, _ = random_weight("Q4_1", 32, 64)
    assert quantized_linear(torch.empty(0, 64), [weight]).shape == (0, 32)


def test_wrong_shapes_are_named(isa: str) -> None:
    weight, _ = random_weight("Q4_1", 32, 64)
    with pytest.raises(ValueError, match="x is"):
        quantized_linear(torch.ones(2, 32), [weight])
    with pytest.raises(ValueError, match="bias"):
        quantized_linear(torch.ones(2, 64), [weight], torch.ones(31))
