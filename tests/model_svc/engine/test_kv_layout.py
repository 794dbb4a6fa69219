"""A KV layout tells caches apart whose blocks may not be exchanged."""

from __future__ import annotations

import torch

from model_svc.models.decoder import KvShape
from model_svc.runner.kv_cache import KvCache
from model_svc.runner.kv_transfer import layout_of


def test_caches_of_one_form_on_another_kind_of_device_are_not_alike() -> None:
    shapes = [KvShape(2, 8)]
    here, there = (layout_of(KvCache(shapes, 3, 4, torch.bfloat16, torch.device(device))) for device in ("cpu", "meta"))
    assert here.difference(there) == "device"
    assert here.digest != there.digest
