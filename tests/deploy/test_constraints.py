"""The pins and pyproject.toml agree, and name what any package index has."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = ("cpu.txt", "cuda.txt")


def pins(name: str) -> dict[str, Requirement]:
    lines = (ROOT / "constraints" / name).read_text().splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def direct_requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    groups = (project["dependencies"], *extras.values())
    return [Requirement(text) for group in groups for text in group]


@pytest.mark.parametrize("file", FILES)
def test_every_direct_requirement_is_pinned_within_its_range(file: str) -> None:
    pinned = pins(file)
    for requirement in direct_requirements():
        pin = pinned[canonicalize_name(requirement.name)]
        for exact in (specifier for specifier in pin.specifier if specifier.operator == "=="):
            assert requirement.specifier.contains(exact.version), f"{pin} is outside {requirement}"


@pytest.mark.parametrize("file", FILES)
def test_no_pin_names_a_build_that_the_public_index_lacks(file: str) -> None:
    assert not [str(pin) for pin in pins(file).values() if "+" in str(pin.specifier) or pin.url]


def test_targets_differ_in_torch_and_triton_only() -> None:
    cpu, cuda = pins("cpu.txt"), pins("cuda.txt")
    assert cpu.keys() == cuda.keys()
    assert {name for name in cpu if cpu[name] != cuda[name]} == {"torch", "triton"}
