"""MXFP4 as gpt-oss publishes it: 4 bit floats, a power of two for each 32 inputs, all experts in one tensor.

Source: transformers, `integrations/mxfp4.py`: `<name>_blocks` uint8 [experts, out, in / 32, 16], of each byte the low
four bits first; `<name>_scales` uint8 [experts, out, in / 32], exponents plus 127.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import Tensor

from model_svc.weights.formats.fields import Fields
from model_svc.weights.stored.float4_tensor import Float4Tensor


class Mxfp4:
    """What the config says: which modules are not stored so."""

    name = "MXFP4, 4 bit floats, blocks of 32"

    def __init__(self, fields: Fields) -> None:
        """Raise CheckpointError for names that are none."""
        self._ignored = fields.names("modules_to_not_convert")

    def ignores(self, module: str) -> bool:
        """Tell whether the config says that a module, or one that it is part of, is not stored so."""
        return any(fnmatchcase(module, end) for pattern in self._ignored for end in (pattern, f"{pattern}.*"))

    def read(self, codes: Tensor, scales: Tensor) -> Float4Tensor:
        """Make a weight of codes [out, in / 32, 16] and scales [out, in / 32]."""
        return Float4Tensor(codes, scales)
