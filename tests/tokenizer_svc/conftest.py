"""One of each kind of model for the tests of the tokenizer desk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model_fixture import smollm2_path as smollm2_path
from tests.tokenizer_svc.model_directories import THINKING, builder, write_chatml, write_inst
from tokenizer_svc.prompt import PromptBuilder


@pytest.fixture(scope="session")
def chatml_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chatml(tmp_path_factory.mktemp("chatml"))


@pytest.fixture(scope="session")
def inst_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inst(tmp_path_factory.mktemp("inst"))


@pytest.fixture(scope="session")
def thinking_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chatml(tmp_path_factory.mktemp("thinking"), template=THINKING)


@pytest.fixture(scope="session")
def chatml(chatml_path: Path) -> PromptBuilder:
    return builder(chatml_path)


@pytest.fixture(scope="session")
def inst(inst_path: Path) -> PromptBuilder:
    return builder(inst_path)


@pytest.fixture(scope="session")
def thinking(thinking_path: Path) -> PromptBuilder:
    return builder(thinking_path)


@pytest.fixture(scope="session")
def smollm2(smollm2_path: Path) -> PromptBuilder:
    return builder(smollm2_path)
