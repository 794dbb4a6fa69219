"""Rows of the embedding table: by id, scaled, zeros for ids outside."""

import pytest
import torch

from kernels.embedding import embedding
from tests.kernels.close import Close


@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("V", "E"), [(11, 576), (50, 2500), (7, 3)])
def test_rows_are_taken_by_id(device: str, ids_dtype: torch.dtype, V: int, E: int) -> None:
    weight = torch.randn(V, E, device=device)
    ids = torch.randint(V, (13,), device=device, dtype=ids_dtype)
    assert torch.equal(embedding(ids, weight), weight[ids.long()])


def test_rows_are_scaled_in_float32_and_rounded_once(device: str, close: Close) -> None:
    weight = torch.randn(9, 640, device=device, dtype=torch.bfloat16)
    ids = torch.tensor([8, 0, 3], device=device)
    close(embedding(ids, weight, scale=25.25), weight[ids].cpu().double() * 25.25)


def test_ids_outside_the_table_give_zeros(device: str) -> None:
    weight = torch.randn(4, 8, device=device)
    out = embedding(torch.tensor([-1, 3, 4, 1 << 40], device=device), weight)
    assert torch.equal(out[1], weight[3])
    assert not out[[0, 2, 3]].any()


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="ids"):
        embedding(torch.zeros(2), torch.zeros(3, 4))
    with pytest.raises(ValueError, match="weight"):
        embedding(torch.zeros(2, dtype=torch.int64), torch.zeros(3))
