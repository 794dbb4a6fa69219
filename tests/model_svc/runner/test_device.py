"""A card that torch cannot use is refused in one sentence that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from model_svc.engine_link import EngineDiedError, EngineLink
from model_svc.runner.device import device_named
from model_svc.runner.load import RunnerConfigError, load_runner
from tests.model_svc.house import make_model, settings_for
from tests.model_svc.scripted_runner import Script


@pytest.mark.skipif(torch.version.cuda is not None, reason="a torch for CPUs only is wanted")
def test_a_torch_for_cpus_only_is_told_apart_from_a_missing_card() -> None:
    with pytest.raises(
        RunnerConfigError, match=r"device cuda needs a torch for NVIDIA cards.*TARGET=cuda.*device to cpu"
    ):
        load_runner("nowhere", device="cuda")


def test_without_a_card_its_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(RunnerConfigError, match=r"device cuda:1 needs an NVIDIA card.*nvidia-smi.*device to cpu"):
        device_named("cuda:1")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(RunnerConfigError, match="there is no device cuda:2: of 2 the last is cuda:1"):
        device_named("cuda:2")
    assert device_named("cuda:1") == torch.device("cuda:1")
    assert device_named("cpu") == torch.device("cpu")


@pytest.mark.anyio
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a card")
async def test_the_engine_says_it_without_a_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_model(tmp_path, Script())
    settings = settings_for(tmp_path, "", device="cuda", runner="model_svc.runner.load:load_runner")
    with pytest.raises(EngineDiedError, match="device cuda needs a") as caught:
        async with EngineLink.open(settings) as link:
            while True:
                await link.receive()
    said = capfd.readouterr().err
    assert f"the engine stops: {caught.value}" in said
    assert "Traceback" not in said
