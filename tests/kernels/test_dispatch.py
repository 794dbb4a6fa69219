"""Which form of an op runs: by device, dtype, environment, or as forced."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kernels import dispatch


def test_cpu_tensors_take_the_reference_unless_told_otherwise() -> None:
    before = dispatch.form(torch.empty(0))
    with dispatch.forced("triton"):
        assert dispatch.form(torch.empty(0)) == "triton"
    assert dispatch.form(torch.empty(0)) == before


@pytest.mark.parametrize(
    ("value", "expected"),
    [("", ("reference", "native")), ("triton", ("triton",)), ("reference", ("reference",))],
    ids=["unset", "triton", "reference"],
)
def test_the_environment_decides_once(value: str, expected: tuple[str, ...]) -> None:
    code = "import torch; from kernels import dispatch; print(dispatch.form(torch.empty(0)))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"HEADRACE_KERNELS": value, "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() in expected  # native where it is built


def test_an_unknown_form_is_refused_by_name() -> None:
    code = "import kernels.dispatch"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"HEADRACE_KERNELS": "cuda", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode
    assert "HEADRACE_KERNELS is 'cuda'; it must be one of reference, triton" in run.stderr


def test_the_exact_mode_asks_for_the_reference_and_what_is_forced_wins() -> None:
    with dispatch.on_cpu("reference"):
        with dispatch.forced("triton"):
            assert dispatch.form(torch.empty(0)) == "triton"
        if not dispatch._forced:
            assert dispatch.form(torch.empty(0)) == "reference"


def test_steps_of_two_threads_that_overlap_each_have_what_they_asked_for() -> None:
    begun, ended = threading.Event(), threading.Event()
    before = dispatch.form(torch.empty(0)), dispatch.fixed()

    def other() -> tuple[str, bool]:
        with dispatch.on_cpu("reference"), dispatch.fixed_order():
            begun.set()
            assert ended.wait(100)
            return dispatch.form(torch.empty(0)), dispatch.fixed()

    with ThreadPoolExecutor(1) as pool:
        with dispatch.on_cpu("reference"), dispatch.fixed_order():
            found = pool.submit(other)
            assert begun.wait(100)
        assert (dispatch.form(torch.empty(0)), dispatch.fixed()) == before
        ended.set()
        assert found.result(100) == (dispatch._forced or "reference", True)
    assert (dispatch.form(torch.empty(0)), dispatch.fixed()) == before


def test_only_float32_has_native_kernels() -> None:
    if not dispatch._forced:
        assert dispatch.form(torch.empty(0, dtype=torch.bfloat16)) == "reference"
