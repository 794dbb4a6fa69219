"""The device that a setting names, if torch can use it here."""

from __future__ import annotations

import torch

from model_svc.runner.precision import RunnerConfigError


def device_named(name: str) -> torch.device:
    """Return a device, `cpu`, `cuda` or `cuda:N`. Raises RunnerConfigError for a card that there is not."""
    device = torch.device(name)
    if device.type != "cuda":
        return device
    found = torch.cuda.device_count()
    if not found and torch.version.cuda is None:
        raise RunnerConfigError(
            f"device {name} needs a torch for NVIDIA cards, and {torch.__version__} is one for CPUs only: install it "
            "(`make up TARGET=cuda`), or set device to cpu"
        )
    if not found:
        raise RunnerConfigError(
            f"device {name} needs an NVIDIA card, and torch finds none: look at its driver (`nvidia-smi`; a container "
            "must be given the card), or set device to cpu"
        )
    if (device.index or 0) >= found:
        raise RunnerConfigError(f"there is no device {name}: of {found} the last is cuda:{found - 1}")
    return device
