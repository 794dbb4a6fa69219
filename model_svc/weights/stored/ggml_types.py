"""The GGML tensor types that we read: values and bytes of one block. No torch here: `headrace pull` imports it."""

from __future__ import annotations

from typing import NamedTuple


class GgmlType(NamedTuple):
    """A storage type: `values` numbers are stored in one block of `num_bytes` bytes."""

    name: str
    code: int
    values: int
    num_bytes: int


# Source: ggml.h (codes) and ggml-common.h (block layouts).
_READ = (
    GgmlType("F32", 0, 1, 4),
    GgmlType("F16", 1, 1, 2),
    GgmlType("BF16", 30, 1, 2),
    GgmlType("Q4_0", 2, 32, 18),
    GgmlType("Q4_1", 3, 32, 20),
    GgmlType("Q5_0", 6, 32, 22),
    GgmlType("Q5_1", 7, 32, 24),
    GgmlType("Q8_0", 8, 32, 34),
    GgmlType("MXFP4", 39, 32, 17),
    GgmlType("Q4_K", 12, 256, 144),
    GgmlType("Q5_K", 13, 256, 176),
    GgmlType("Q6_K", 14, 256, 210),
)
GGML_TYPES: dict[int, GgmlType] = {item.code: item for item in _READ}
BY_NAME: dict[str, GgmlType] = {item.name: item for item in _READ}
