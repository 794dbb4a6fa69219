"""What the doctor says of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.doctor import check_model
from tests.model_svc.tiny import TINY


def directory(monkeypatch: pytest.MonkeyPatch, place: Path, **quantization: Any) -> None:
    (place / "tiny").mkdir()
    (place / "tiny" / "config.json").write_text(json.dumps(TINY | {"quantization_config": quantization}))
    monkeypatch.setenv("HEADRACE_MODEL_DIR", str(place))
    monkeypatch.setenv("HEADRACE_MODELS", "tiny")


def test_the_doctor_names_a_models_quantization(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory(monkeypatch, tmp_path, quant_method="awq", bits=4, group_size=64)
    found = check_model()
    assert "AWQ, 4 bit, groups of 64" in found.seen
    assert not found.fix


def test_the_doctor_names_a_quantization_that_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory(monkeypatch, tmp_path, quant_method="gptq", bits=3)
    found = check_model()
    assert "quantization_config.bits is 3; supported: 4, 8" in found.seen
    assert found.fatal
