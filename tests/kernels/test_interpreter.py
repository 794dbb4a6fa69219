"""What `tests.interpreter` makes of Triton's interpreter computes what the interpreter as it came does."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from triton import knobs
from triton import language as tl
from triton.runtime import interpreter

from tests.interpreter import _swapped

pytestmark = pytest.mark.skipif(not knobs.runtime.interpret, reason="Triton compiles on this machine")


def test_the_language_is_swapped_once() -> None:
    assert interpreter._patch_lang is _swapped


@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("keep_dims", [False, True])
def test_exclusive_ors_are_those_of_numbers_one_by_one(axis: int | None, keep_dims: bool) -> None:
    data = np.random.default_rng(1).integers(-(2**31), 2**31, (4, 8), dtype=np.int32)
    tensor = tl.core.tensor(interpreter.TensorHandle(data, tl.int32), tl.block_type(tl.int32, [4, 8]))
    reduce = interpreter.ReduceOps(axis, tl.standard._xor_combine, keep_dims)
    [found] = reduce.apply((tensor,))
    [expected] = interpreter.ReduceOps.generic_reduce.__wrapped__(reduce, (tensor,))
    assert_array_equal(found.handle.data, expected.handle.data, strict=True)
    assert found.type == expected.type


@pytest.mark.parametrize("kind", [tl.int1, tl.float32, tl.bfloat16, tl.float8e4nv, tl.pointer_type(tl.float32)])
def test_types_are_known_by_their_names(kind: tl.dtype) -> None:
    block = tl.block_type(kind, [16])
    expected = np.dtype(
        {"int1": bool, "fp32": np.float32, "bf16": np.uint16, "fp8e4nv": np.uint8}.get(kind.name, np.uint64)
    )
    for _ in range(2):
        assert interpreter._get_np_dtype(kind) == interpreter._get_np_dtype(block) == expected
