"""Dependent launches: a kernel starts while the one before it runs, so that between short ones no start is waited for.

The order of memory is then the kernels' own affair. One that starts so waits before it writes anything. When its wait
ends all kernels before it are done, as each of them waited before it ended. Before that it may read only what was there
before the last kernel that started in the usual way, or that waited before it let the next one start: weights, and in
the layers a step's inputs, as the embedding stands between.
"""

# mypy: disable-error-code="no-untyped-def"
from functools import cache
from typing import Any

import torch
from torch import Tensor

from kernels.language import TRITON_INSTALLED, jit, tl

if TRITON_INSTALLED:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def serves(tensor: Tensor) -> bool:
    """Tell whether kernels on a tensor's device can be launched so: on NVIDIA cards from Hopper on."""
    return tensor.is_cuda and _serves(tensor.device)


def launch(tensor: Tensor) -> dict[str, Any]:
    """Return the options of a dependent launch, where there is one, and `PDL`, which tells the kernel of it."""
    return {"PDL": True, "launch_pdl": True} if serves(tensor) else {"PDL": False}


@jit
def follow(PDL: tl.constexpr):
    """Let the next kernel start, and wait until those before this one are done."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@cache
def _serves(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 9
