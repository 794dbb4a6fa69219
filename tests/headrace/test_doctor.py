"""What the doctor says of models, and of the places that a newcomer's machine may have."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from headrace import doctor
from headrace.doctor import check_model
from tests.lora import write_config
from tests.model_svc.tiny import TINY
from tests.ports import free_port


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


def test_the_doctor_reads_the_adapters_and_names_the_file_at_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert doctor.check_adapters().seen == "none is set"
    place = tmp_path / "support"
    monkeypatch.setenv("HEADRACE_MODELS", "tiny")
    monkeypatch.setenv("HEADRACE_ADAPTERS", f"support={place}")
    found = doctor.check_adapters()
    assert found.fatal and found.seen == f"{place}: is no directory of an adapter"
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    place.mkdir()
    write_config(place, r=2)
    tensors = {f"{layer}.lora_A.weight": torch.zeros(2, 8), f"{layer}.lora_B.weight": torch.zeros(8, 2)}
    save_file(tensors, place / "adapter_model.safetensors")
    assert doctor.check_adapters() == doctor.Finding("adapters", "support of tiny")
    write_config(place, r=2, use_dora=True)
    found = doctor.check_adapters()
    assert found.fatal and "use_dora true is not supported" in found.seen


def test_the_doctor_names_the_key_file_that_no_edge_would_start_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not doctor.check_keys().fix
    path = tmp_path / "keys.toml"
    monkeypatch.setenv("HEADRACE_API_KEYS", str(path))
    for written, said in ((None, "No such file"), ("[[key", "not TOML"), ('[[key]]\nid="a"\n', "key 'a'")):
        if written is not None:
            path.write_text(written)
        found = doctor.check_keys()
        assert found.fatal
        assert str(path) in found.seen and said in found.seen
        assert "headrace keys add" in found.fix


def test_the_doctor_says_why_a_bus_does_not_answer_and_not_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("HEADRACE_REDIS_URL", f"redis://headrace:secret@127.0.0.1:{port}/0")
    found = doctor.check_bus()
    assert found.fatal
    assert "Connection refused" in found.seen and str(port) in found.seen
    assert "secret" not in found.seen
    assert "HEADRACE_REDIS_URL" in found.fix


def test_the_doctor_looks_at_the_settings_of_every_desk_and_names_the_one_at_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value, said in (("MAX_NUM_SEQS", "0", "HEADRACE_MAX_NUM_SEQS"), ("REPLICAS", "two", "a whole number")):
        with monkeypatch.context() as patch:
            patch.setenv(f"HEADRACE_{name}", value)
            found = doctor.check_settings()
        assert found.fatal
        assert said in found.seen


def test_the_doctor_tells_a_state_directory_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "state"))
    assert not doctor.check_disk().fatal

    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", full)  # type: ignore[attr-defined]
    found = doctor.check_disk()
    assert found.fatal
    assert str(tmp_path) in found.seen and "No space left" in found.seen
    monkeypatch.setenv("HEADRACE_REDIS_URL", "redis://elsewhere:6379")  # then the bus's file is not ours
    assert not doctor.check_disk().fatal


def test_the_doctor_tells_how_many_connections_the_open_files_allow() -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from headrace.doctor import check_limits
print(*check_limits(), sep="|")
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.startswith("limits|256 open files, so 128 connections at a time|ulimit -n 1024")
    assert printed.strip().endswith("False")


@pytest.mark.parametrize("way", ["TENSOR", "PIPELINE"])
def test_the_doctor_looks_at_shared_memory_where_a_model_is_on_several_cards(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    assert "none is needed" in doctor.check_shared_memory().seen
    monkeypatch.setenv(f"HEADRACE_{way}_PARALLEL", "3")
    assert "for 3 processes" in doctor.check_shared_memory().seen
