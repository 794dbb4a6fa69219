"""The norm of a gated delta net's heads against its formula."""

import pytest
import torch

from kernels.gated_norm import gated_norm
from tests.kernels.close import Close


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("T", "V", "D"), [(1, 1, 16), (5, 3, 128), (7, 2, 40)])
def test_the_gated_norm_equals_its_formula(
    device: str, close: Close, T: int, V: int, D: int, dtype: torch.dtype
) -> None:
    x = torch.randn(T, V, D, device=device).to(dtype)
    gate = torch.randn(T, V * D + 9, device=device).to(dtype)[:, 9:].view(T, V, D)  # cut out of a fused row
    weight = torch.randn(D, device=device).to(dtype)
    wide, z = x.cpu().double(), gate.cpu().double()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.cpu().double()
    close(gated_norm(x, gate, weight, 1e-6), wanted * z / (1 + torch.exp(-z)))


@pytest.mark.parametrize(("T", "V", "D", "dtype"), [(5, 2, 40, torch.float32), (3, 1, 136, torch.float16)])
def test_the_gate_may_stand_before_the_norm_and_each_group_have_weights_of_its_own(
    device: str, close: Close, T: int, V: int, D: int, dtype: torch.dtype
) -> None:
    x, gate = (torch.randn(T, V, D, device=device).to(dtype) for _ in range(2))
    weight = torch.randn(V, D, device=device).to(dtype)
    wide = x.cpu().double() * torch.nn.functional.silu(gate.cpu().double())
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.cpu().double()
    close(gated_norm(x, gate, weight, 1e-6, gate_first=True), wanted)


def test_no_tokens_and_wrong_arguments() -> None:
    x, weight = torch.zeros(2, 3, 8), torch.zeros(8)
    assert gated_norm(x[:0], x[:0], weight, 1e-6).shape == (0, 3, 8)
    with pytest.raises(ValueError, match="twice and"):
        gated_norm(x, x[:1], weight, 1e-6)
    with pytest.raises(ValueError, match="x and weight must be contiguous"):
        gated_norm(x.transpose(0, 1), x.transpose(0, 1), weight, 1e-6)
