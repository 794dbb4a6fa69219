"""The list of mutations stays true to the sources: each entry finds its text once and names tests that exist."""

from __future__ import annotations

from typing import Any

import pytest

from tests.mutations import ROOT, load

MUTATIONS = load()


def test_names_are_unique() -> None:
    names = [mutation["name"] for mutation in MUTATIONS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation["name"])
def test_an_entry_fits_the_sources(mutation: dict[str, Any]) -> None:
    source = (ROOT / mutation["file"]).read_text()
    assert source.count(mutation["find"]) == 1
    assert mutation["find"] != mutation["replace"]
    for test in mutation["tests"]:
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
        assert (ROOT / file).exists(), test
        assert not name or name.partition("[")[0].rpartition("::")[2] in text, test
