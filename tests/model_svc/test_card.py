"""The driver is woken beside the import, for a GPU only, and its faults are left to torch."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import pytest

from model_svc.card import waking


class Driver:
    """A driver that notes its calls; `result` is what each returns."""

    def __init__(self, result: int = 0) -> None:
        self.calls: list[Any] = []
        self._result = result

    def __call__(self, name: str) -> Driver:
        self.calls.append(name)
        return self

    def cuInit(self, flags: int) -> int:  # noqa: N802
        self.calls.append(("init", flags))
        return self._result

    def cuDeviceGet(self, number: Any, index: int) -> int:  # noqa: N802
        number._obj.value = index + 40
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, number: ctypes.c_int) -> int:  # noqa: N802
        context._obj.value = 1
        self.calls.append(("context", number.value))
        return self._result


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "")
    monkeypatch.delenv("CUDA_MODULE_LOADING")


@pytest.mark.parametrize(("device", "number"), [("cuda", 40), ("cuda:3", 43)])
def test_the_context_of_the_device_is_there_when_the_block_ends(device: str, number: int) -> None:
    driver = Driver()
    with waking(device, driver):
        assert os.environ["CUDA_MODULE_LOADING"] == "LAZY"
    assert driver.calls == ["libcuda.so.1", ("init", 0), ("context", number)]


def test_nothing_is_woken_for_a_cpu() -> None:
    driver = Driver()
    with waking("cpu", driver):
        pass
    assert driver.calls == []
    assert "CUDA_MODULE_LOADING" not in os.environ


def test_the_block_goes_on_meanwhile_and_faults_are_left_to_torch() -> None:
    may_load = threading.Event()

    def missing(_: str) -> Any:
        assert may_load.wait(60)
        raise OSError("libcuda.so.1: cannot open shared object file")

    with waking("cuda", missing):
        may_load.set()
    broken = Driver(result=100)
    with waking("cuda", broken):
        pass
    assert broken.calls == ["libcuda.so.1", ("init", 0)]
