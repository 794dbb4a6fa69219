"""Low-rank additions against float64: any mix of adapters in a batch, rows without one untouched to the bit."""

import pytest
import torch
from torch import Tensor

from kernels import dispatch
from kernels.lora import LoraRows, LoraWeights, add_lora
from tests.kernels.close import Close


def _weights(device: str, dtype: torch.dtype, L: int, R: int, size: int, widths: tuple[int, ...]) -> LoraWeights:
    down = torch.randn(L, len(widths) * R, size, device=device).to(dtype)
    return LoraWeights(down, torch.randn(L, sum(widths), R, device=device).to(dtype), widths)


def _truth(x: Tensor, weights: LoraWeights, index: Tensor, out: Tensor, scale: float) -> Tensor:
    truth, R = out.cpu().double().clone(), weights.rank
    down, up = weights.down.cpu().double(), weights.up.cpu().double()
    for t, number in enumerate(index.tolist()):
        begin = 0
        for part, width in enumerate(weights.widths if number else ()):
            low = down[number - 1, part * R : (part + 1) * R] @ x[t].cpu().double()
            truth[t, begin : begin + width] += scale * (up[number - 1, begin : begin + width] @ low)
            begin += width
    return truth


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("T", "L", "R", "size", "widths"),
    [
        (1, 1, 16, 64, (48,)),
        (19, 3, 16, 1100, (70, 24, 24)),
        (33, 2, 48, 96, (200, 130)),
        (300, 2, 16, 40, (32,)),
        (5, 4, 8, 33, (1,)),
        (0, 1, 16, 32, (16,)),
    ],
)
def test_each_row_gets_its_adapters_part_and_no_other(
    device: str, close: Close, dtype: torch.dtype, T: int, L: int, R: int, size: int, widths: tuple[int, ...]
) -> None:
    weights = _weights(device, dtype, L, R, size, widths)
    x = torch.randn(T, size, device=device).to(dtype) / 8
    index = torch.randint(0, L + 1, (T,), dtype=torch.int32)
    out = torch.randn(T, sum(widths), device=device).to(dtype)
    before, truth = out.clone(), _truth(x, weights, index, out, 0.5)
    add_lora(x, weights, LoraRows(index.to(device)), out, 0.5)
    close(out, truth, loose=3.0)
    assert torch.equal(out[index == 0], before[index == 0])


def test_a_row_has_the_same_bits_in_any_company_where_order_is_fixed(device: str) -> None:
    weights = _weights(device, torch.float16, 2, 16, 1500, (64, 32))
    x = torch.randn(280, 1500, device=device).half() / 8
    index = torch.randint(0, 3, (280,), dtype=torch.int32, device=device)
    with dispatch.fixed_order():
        whole = torch.zeros(280, 96, device=device).half()
        add_lora(x, weights, LoraRows(index), whole)
        some = torch.zeros(7, 96, device=device).half()
        add_lora(x[100:107], weights, LoraRows(index[100:107]), some)
    if dispatch.form(x) == "triton":
        assert torch.equal(whole[100:107], some)


def test_rows_that_lie_in_a_wider_matrix_are_read_and_written_there(device: str, close: Close) -> None:
    weights = _weights(device, torch.float32, 1, 16, 32, (16,))
    wide, total = torch.randn(3, 50, device=device), torch.zeros(3, 40, device=device)
    index = torch.tensor([1, 0, 1], dtype=torch.int32)
    truth = _truth(wide[:, 5:37], weights, index, total[:, 8:24], 1.0)
    add_lora(wide[:, 5:37], weights, LoraRows(index.to(device)), total[:, 8:24])
    close(total[:, 8:24], truth)
    assert not total[:, :8].any() and not total[:, 24:].any()


def test_shapes_that_do_not_fit_are_refused(device: str) -> None:
    weights = _weights(device, torch.float32, 1, 16, 32, (16,))
    rows = LoraRows(torch.ones(2, dtype=torch.int32, device=device))
    x, out = torch.zeros(2, 32, device=device), torch.zeros(2, 16, device=device)
    with pytest.raises(ValueError, match="must fit 2 rows"):
        add_lora(x[:1], weights, rows, out)
    with pytest.raises(ValueError, match="int32"):
        add_lora(x, weights, LoraRows(rows.index.long()), out)
    with pytest.raises(ValueError, match="of 2 parts"):
        add_lora(x, LoraWeights(weights.down, weights.up, (8, 8)), rows, out)
