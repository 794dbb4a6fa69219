"""What the names of our packages must not break."""

from pathlib import Path

from transformers.utils.import_utils import is_kernels_available

import kernels


def test_transformers_does_not_take_our_kernels_for_its_own() -> None:
    assert is_kernels_available() is False


def test_the_kernels_package_file_is_empty() -> None:
    assert kernels.__file__ is not None
    assert Path(kernels.__file__).read_text() == ""
