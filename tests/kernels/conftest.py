"""Every op is tested in two forms against a float64 oracle: its torch reference, and its Triton kernel.

Triton runs interpreted where there is no GPU; on a machine with one, `-m gpu` runs the same tests compiled.
"""

import os
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

from kernels import dispatch
from tests.kernels.close import Close, assert_close


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """One thread; and the interpreter's numpy may overflow as silently as a GPU does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with np.errstate(all="ignore"):
        yield
    torch.set_num_threads(before)


@pytest.fixture(
    params=[
        pytest.param(("reference", "cpu"), id="reference"),
        pytest.param(("native", "cpu"), id="native"),
        pytest.param(("triton", "cpu"), id="interpreted"),
        pytest.param(("triton", "cuda"), id="compiled", marks=pytest.mark.gpu),
    ]
)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force one form of every op and give the device on which its tensors must lie."""
    form, where = request.param
    if where == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if form == "triton" and where == "cpu" and torch.cuda.is_available():
        pytest.skip("Triton compiles on this machine; run with -m gpu")
    with dispatch.forced(form):
        yield where


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Seed each test with a number of its own, the same in every run; HEADRACE_TEST_SEED=N gives others."""
    value = int(os.environ.get("HEADRACE_TEST_SEED", 0)) or zlib.crc32(request.node.nodeid.encode())
    print(f"HEADRACE_TEST_SEED={value}")  # noqa: T201 - captured, shown with a failure
    torch.manual_seed(value)
    return value


@pytest.fixture(autouse=True)
def _fresh(seed: int) -> None:
    """Seed torch for every test."""


@pytest.fixture
def close() -> Close:
    return assert_close
