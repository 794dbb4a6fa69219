"""Blocks are exchanged between replicas of the same weights alone, adapters' included."""

from __future__ import annotations

from pathlib import Path

from model_svc.disagg.weights_digest import weights_digest


def test_another_adapter_under_the_same_name_is_other_weights(tmp_path: Path) -> None:
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    for folder in (base, adapter):
        folder.mkdir()
        (folder / "adapter_model.safetensors").write_bytes(b"x" * 100)
    bare, adapted = weights_digest(base), weights_digest(base, adapter)
    assert bare != adapted == weights_digest(base, adapter)
    (adapter / "adapter_model.safetensors").write_bytes(b"y" * 100)
    assert weights_digest(base, adapter) != adapted
