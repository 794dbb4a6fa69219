"""The kernels' benchmark tells what it can time, on a machine without a card too."""

from __future__ import annotations

import pytest

from loadtest.kernels.__main__ import OPS, main


def test_help_names_every_op(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(op.__name__ in said for op in OPS)


def test_an_unknown_op_is_named_beside_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["gem"])
    assert ended.value.code == 2
    assert "unknown ops: gem; known: " in capsys.readouterr().err
