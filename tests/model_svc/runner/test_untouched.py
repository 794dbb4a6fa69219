"""Memory for KV blocks: none at rest, a page of each tensor ahead of the blocks once some were used, contents kept."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels.native.huge_pages import PAGE
from kernels.native.library import built
from model_svc.models.decoder import Decoder
from model_svc.runner import untouched
from model_svc.runner.load import make_runner
from model_svc.runner.runner import TorchRunner
from tests.model_svc.paged import RunnerDriver, Tracked, token_ids

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or tuple(map(int, platform.release().split(".")[:2])) < (5, 14),
    reason="memory is taken ahead from Linux 5.14 on",
)

BLOCK = 16
NUM_PAGES = 12  # of each tensor: large enough to begin with a page
PROMPT = [3 + n % 50 for n in range(4 * BLOCK)]


def pages_of(tensor: Tensor) -> list[int]:
    """Return the pages that a tensor lies in."""
    begin = tensor.data_ptr() // PAGE * PAGE
    return list(range(begin, tensor.data_ptr() + tensor.nbytes, PAGE))


def resident(address: int) -> bool:
    """Tell whether any of a page is in memory."""
    seen = (ctypes.c_ubyte * (PAGE // 4096))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), seen) == 0
    return any(byte & 1 for byte in seen)


def tensors_of(runner: TorchRunner) -> list[Tensor]:
    return [tensor for layer in runner._cache.layers for tensor in layer]


def num_resident(runner: TorchRunner) -> list[int]:
    """Return how many pages of each tensor are in memory."""
    return [sum(map(resident, pages_of(tensor))) for tensor in tensors_of(runner)]


def use(runner: TorchRunner, first_block: int = 0) -> list[int]:
    """Answer a prompt in blocks from a number on; returns the tokens."""
    driver = RunnerDriver(runner)
    driver.dealer._free = list(reversed(range(first_block, first_block + 8)))
    return token_ids(driver.generate([Tracked(slot=0, ids=list(PROMPT))], 6))[0]


def made(model: Decoder, num_pages: float, *, native_kernels: bool) -> TorchRunner:
    """Return a runner whose cache's tensors are of so many pages each."""
    num_blocks = int(num_pages * blocks_a_page(model, native_kernels=native_kernels))
    runner = make_runner(
        model, num_blocks=num_blocks, block_size=BLOCK, max_num_seqs=2, native_kernels=native_kernels
    )  # fmt: skip
    assert isinstance(runner, TorchRunner)
    return runner


def blocks_a_page(model: Decoder, *, native_kernels: bool) -> int:
    (shape, *_) = model.kv_shapes()
    return PAGE // (BLOCK * shape.num_kv_heads * shape.head_dim * (2 if native_kernels else 4))


@pytest.fixture(params=[True, False], ids=["float16", "float32"])
def runner(request: pytest.FixtureRequest, tiny_model: Decoder) -> Iterator[TorchRunner]:
    if request.param and not built():
        pytest.skip("native kernels are not built")
    found = made(tiny_model, NUM_PAGES, native_kernels=request.param)
    yield found
    found.close()


def page_blocks(runner: TorchRunner, page: int) -> int:
    """Return the first block of a page."""
    return page * runner.info.num_blocks // NUM_PAGES


def idle(runner: TorchRunner) -> int:
    """Use idle time until nothing is left; returns how many parts there were."""
    num_parts = 0
    while runner.use_idle_time():
        num_parts += 1
        assert num_parts < 100
    return num_parts


def test_at_rest_no_memory_is_taken(runner: TorchRunner) -> None:
    assert not runner.use_idle_time()
    assert num_resident(runner) == [0, 0, 0, 0]


def test_idle_time_takes_the_next_page_of_each_tensor_one_at_a_time(runner: TorchRunner) -> None:
    use(runner)
    assert num_resident(runner) == [1, 1, 1, 1]
    for num_taken in range(1, 5):
        assert runner.use_idle_time()
        assert sum(num_resident(runner)) == 4 + num_taken
    assert not runner.use_idle_time()
    assert num_resident(runner) == [2, 2, 2, 2]


def test_once_the_page_ahead_is_used_the_next_one_is_taken(runner: TorchRunner) -> None:
    use(runner)
    assert idle(runner) == 4
    use(runner, page_blocks(runner, 1) - 1)
    assert idle(runner) == 4
    assert num_resident(runner) == [3, 3, 3, 3]
    use(runner)  # blocks of before
    assert idle(runner) == 0


def test_behind_the_last_page_nothing_is_taken(runner: TorchRunner) -> None:
    use(runner, page_blocks(runner, NUM_PAGES - 2))
    assert idle(runner) == 4
    assert num_resident(runner) == [2, 2, 2, 2]
    use(runner, page_blocks(runner, NUM_PAGES - 1))
    assert idle(runner) == 0


def test_what_blocks_hold_stays_wherever_they_are(runner: TorchRunner) -> None:
    """Also on the page that is taken: a cache's blocks may have come from another replica."""
    wanted = use(runner)
    for tensor in tensors_of(runner):
        tensor[page_blocks(runner, 1)] = 3.0
    before = [tensor.clone() for tensor in tensors_of(runner)]
    assert idle(runner) == 4
    assert all(torch.equal(*pair) for pair in zip(tensors_of(runner), before, strict=True))
    assert use(runner, page_blocks(runner, 1)) == wanted


@pytest.mark.skipif(not built(), reason="native kernels are not built")
def test_tensors_that_share_pages_have_the_next_one_too(tiny_model: Decoder) -> None:
    runner = made(tiny_model, 2.3, native_kernels=True)
    use(runner)
    assert 1 <= idle(runner) <= 4
    for tensor in tensors_of(runner):
        behind = tensor[blocks_a_page(tiny_model, native_kernels=True)]
        assert resident(behind.data_ptr() // PAGE * PAGE)
    runner.close()


def test_a_system_that_takes_no_memory_ahead_is_asked_once(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untouched, "_MADV_POPULATE_WRITE", 12345)
    wanted = use(runner)
    assert idle(runner) == 1
    assert num_resident(runner) == [1, 1, 1, 1]
    assert use(runner, 8) == wanted
