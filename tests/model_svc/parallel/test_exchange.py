"""What ranks exchange behind their products: also where more is fused with these, and in a fixed order."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels import dispatch, few_rows
from model_svc.layers.group import ALONE, Group, RankError
from model_svc.layers.parallel_linear import head_parts
from model_svc.models.decoder import Decoder
from tests.model_svc.paged import ModelDriver, Tracked
from tests.model_svc.parallel.ranks import Threads, ranks
from tests.model_svc.tiny import EXPERTS, VOCAB, tiny_llama

IDS = [(7 * n + n * n) % VOCAB for n in range(23)]
BIASED = {
    "architectures": ["GptOssForCausalLM"], "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 7,
}  # fmt: skip
GRANITE = {"architectures": ["GraniteForCausalLM"], "residual_multiplier": 0.4, "logits_scaling": 2.0}


@pytest.fixture(scope="module")
def two() -> Iterator[Threads]:
    with ranks(2) as threads:
        yield threads


def logits(group: Group, **changes: Any) -> torch.Tensor:
    model = tiny_llama(group=group, intermediate_size=64, **changes)
    driver, seq = ModelDriver(model), Tracked(0, list(IDS))
    return torch.cat([driver.logits((seq, count))[0] for count in (20, 1, 1, 1)])


@pytest.mark.parametrize("changes", [{}, GRANITE], ids=["llama", "granite"])
def test_one_rank_adds_the_residual_where_products_end_in_the_addition(
    two: Threads, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = logits(ALONE, **changes)
    calls: list[float] = []
    add = torch.Tensor.addmm_

    def noting(*args: object, **more: object) -> torch.Tensor:
        calls.append(float(more["beta"]))  # type: ignore[arg-type]
        return add(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.Tensor, "addmm_", noting)
    monkeypatch.setattr("model_svc.layers.blocks.dispatch", SimpleNamespace(form=lambda _: "triton", fixed=bool))
    for found in two.each(lambda group: logits(group, **changes)):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert sorted(set(calls)) == [0.0, 1.0]


@pytest.mark.parametrize(
    "changes", [{}, EXPERTS | {"moe_intermediate_size": 64}, BIASED], ids=["llama", "experts", "experts with biases"]
)
def test_one_rank_adds_the_residual_in_the_kernels_of_few_rows(
    two: Threads, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = logits(ALONE, **changes)
    calls: list[int] = []
    add = few_rows.linear_add
    monkeypatch.setattr(few_rows, "linear_add", lambda *args: calls.append(1) or add(*args))  # type: ignore[func-returns-value]
    monkeypatch.setattr(few_rows, "fits", lambda _x, rows: rows <= few_rows.MAX_ROWS)
    monkeypatch.setattr(few_rows, "linear_into", lambda x, weight, out: out.copy_(x @ weight.t()))
    for found in two.each(lambda group: logits(group, **changes)):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert calls


def test_a_silent_group_exchanges_nothing(two: Threads) -> None:
    x = torch.ones(3)
    with two.groups[1].silent():
        two.groups[1].add_up(x)  # rank 0 does not take part
        assert two.groups[1].gather(x).tolist() == [[1, 1, 1]] * 2
    assert x.tolist() == [1, 1, 1]


def test_in_a_fixed_order_ranks_add_one_after_another() -> None:
    parts = torch.tensor([1.0, 1e8, -1e8, 1.0])

    def total(group: Group) -> set[float]:
        x = parts[group.rank].repeat(1 << 16)  # so many that gloo gives each rank a piece to begin with
        with dispatch.fixed_order():
            group.add_up(x)
        return set(x.tolist())

    with ranks(4) as four:
        assert four.each(total) == [{float(((parts[0] + parts[1]) + parts[2]) + parts[3])}] * 4


@pytest.mark.parametrize("out", [16, 67, 97, 512, 128256, 151936])
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_the_parts_of_a_head_cover_every_output(out: int, size: int) -> None:
    width, begins = head_parts(out, size)
    covered = {n for begin in begins for n in range(begin, begin + width)}
    assert covered == set(range(out))


def test_the_least_number_of_blocks_counts_for_all(two: Threads) -> None:
    def least(group: Group) -> int:
        return group.least(40 + group.rank)

    assert two.each(least) == [40, 40]


def test_a_rank_that_hangs_at_the_start_is_named() -> None:
    with ranks(2) as two:
        two.groups[0]._patience_s = 0.05  # type: ignore[attr-defined]
        with pytest.raises(RankError, match=r"a rank is missing at the start.*Rank 1"):
            two.groups[0].least(40)


def test_ranks_have_the_weights_of_their_heads_alone(two: Threads) -> None:
    whole: Decoder = tiny_llama()
    assert [model.weight_bytes < whole.weight_bytes for model in two.each(lambda group: tiny_llama(group=group))]
