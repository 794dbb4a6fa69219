"""An adapter that comes where ranks, or stages, have a part of it each: all have it, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch
import transformers

from model_svc.layers.adapters import AdapterRoom
from model_svc.layers.group import ALONE, Group
from model_svc.parallel.adapters import SharedPlaces, obey_adapter_order
from model_svc.parallel.orders import AdapterOrder
from model_svc.runner.adapter_shelf import AdapterShelf
from model_svc.weights.adapter import AdapterCheckpoint
from model_svc.weights.errors import CheckpointError
from tests.lora import write_adapter
from tests.model_svc.paged import ModelDriver, Tracked
from tests.model_svc.parallel.ranks import ranks
from tests.model_svc.tiny import TINY, tiny_llama

IDS = [5, 9, 14, 3, 60, 22, 41]


class Places(AdapterShelf):
    """A rank's shelf, which may find that it cannot read its part."""

    is_broken = False

    def advance(self) -> str | None:
        digest = super().advance()
        if self.is_broken and digest is not None:
            raise CheckpointError("adapter_model.safetensors", "is lost")
        return digest


class Rank:
    """As much of a rank's runner as adapters need."""

    info: Any = None
    submit: Any = None
    mask: Any = None
    collect: Any = None
    close: Any = None

    def __init__(self, places: Places) -> None:
        self.adapter_places = places


@pytest.mark.parametrize("staged", [False, True])
def test_all_ranks_have_an_adapter_or_none_has(staged: bool, tmp_path: Path) -> None:
    place = write_adapter(
        tmp_path / "one", transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY)), seed=1, spread=0.4
    )
    truth = _logits(tiny_llama(adapters=[AdapterCheckpoint("one", place)]), ALONE)
    said: SimpleQueue[AdapterOrder | bool | None] = SimpleQueue()

    def lead(places: Places, group: Group) -> None:
        shared = SharedPlaces(places, group, said.put, lambda work: work())
        said.put(True)  # the other one cannot read it
        shared.begin("one", str(place))
        with pytest.raises(CheckpointError, match="another rank"):
            _end(shared.advance)
        said.put(False)
        shared.begin("one", str(place))
        name = f"one@{_end(shared.advance)}"
        with pytest.raises(CheckpointError, match="max_adapters is 1"):
            shared.begin("two", str(place))
        shared.drop(name)
        shared.begin("again", str(place))
        _end(shared.advance)

    def follow(places: Places, group: Group) -> None:
        while (order := said.get()) is not None:
            if isinstance(order, bool):
                places.is_broken = order
            else:
                obey_adapter_order(Rank(places), group, order)

    def run(group: Group) -> tuple[list[str], list[torch.Tensor]]:
        model = tiny_llama(group=group, room=AdapterRoom(1))
        numbers: dict[str, int] = {}
        places = Places(model.adapters, numbers)
        try:
            if group.rank or group.stage:
                follow(places, group)
            else:
                try:
                    lead(places, group)
                finally:
                    said.put(None)
        finally:
            places.close()
        return list(numbers), _logits(model, group)

    with ranks(2, staged=staged) as threads:
        found = threads.each(run)
    [(name,), (other,)] = [names for names, _ in found]
    assert name == other and name.startswith("again@")
    for rows in [each for _, logits in found for each in logits]:
        torch.testing.assert_close(rows, truth[0], rtol=1e-4, atol=1e-4)


def _logits(model: Any, group: Group) -> list[torch.Tensor]:
    driver = ModelDriver(model)
    driver.adapter_of = {1: 1}
    with torch.inference_mode():
        found: list[torch.Tensor] = driver.logits((Tracked(slot=1, ids=list(IDS)), len(IDS)))
    assert len(found) == group.is_last
    return found


def _end(advance: Callable[[], str | None]) -> str:
    while (digest := advance()) is None:
        pass
    return digest
