"""Every architecture cut between 2 and 4 ranks computes what it computes whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from model_svc.layers.group import ALONE, Group
from model_svc.models.load import load_model
from tests.model_svc.models.test_parity import CASES, oracle_model, prompt
from tests.model_svc.paged import ModelDriver, Tracked
from tests.model_svc.parallel.ranks import Threads, ranks

CPU = torch.device("cpu")
# Where there are four, KV heads are each several ranks'.
CUTS = [(2, name) for name in sorted(CASES)] + [(4, name) for name in sorted(CASES)[::3]]


@pytest.fixture(scope="module")
def threads() -> Iterator[dict[int, Threads]]:
    """By their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with ranks(2) as two, ranks(4) as four:
        yield {2: two, 4: four}
    torch.set_num_threads(before)


def logits(directory: Path, group: Group) -> tuple[Any, torch.Tensor]:
    model = load_model(directory, dtype=torch.float32, device=CPU, group=group)
    driver, seq, other = ModelDriver(model), Tracked(1, prompt(37, seed=1)), Tracked(2, prompt(9, seed=2))
    parts = [driver.logits((seq, 20))[0]]
    for counts in ((13, 5), (1, 1), (1, 3)):
        parts += driver.logits((seq, counts[0]), (other, counts[1]))
    return model, torch.cat(parts)


@pytest.mark.parametrize(("size", "name"), CUTS)
def test_ranks_compute_what_one_computes(size: int, name: str, threads: dict[int, Threads], tmp_path: Path) -> None:
    oracle_model(name).save_pretrained(tmp_path)
    whole, wanted = logits(tmp_path, ALONE)
    found = threads[size].each(lambda group: logits(tmp_path, group))
    for model, got in found:
        # On some processors other orders of sums cost four digits, where norms widen what is little.
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
        assert torch.equal(got, found[0][1])  # each draws for itself
        heads = {shape.num_kv_heads for shape in model.kv_shapes()}
        assert heads == {max(1, shape.num_kv_heads // size) for shape in whole.kv_shapes()}
    for group, (model, _) in zip(threads[size].groups, found, strict=True):
        assert model.group is group
