"""Three lanes of tests, for a run over three processes (`pytest -n 3`, as `make test` does on several processors).

In one lane run the tests that compute; in one those that start parts: a bus, an edge, a replica of several processes;
in one those that start houses and browsers. So no two houses share the machine. Tests of the latter two wait about as
long as they compute, so that three lanes keep two processors busy. A test belongs to a lane by its folder, and within a
lane tests keep their order. The folders are dealt out so that all lanes take about as long.
"""

from __future__ import annotations

from typing import Any

import pytest

_FOLDERS = {
    "computes": (
        "kernels",
        "model_svc/embedding",
        "model_svc/models",
        "model_svc/quant",
        "model_svc/runner",
        "model_svc/spec",
        "model_svc/vision",
        "model_svc/weights",
    ),
    "serves": (
        "cache_svc",
        "gateway",
        "headrace",
        "model_svc",
        "tokenizer_svc",
        "wire",
    ),
}


def lane_of(node_id: str) -> str:
    """Return the lane of a test: the first that has its folder, or the one of houses."""
    for lane, folders in _FOLDERS.items():
        if node_id.startswith(tuple(f"tests/{folder}/" for folder in folders)):
            return lane
    return "lives"


@pytest.hookimpl(optionalhook=True)  # there is none without the plugin
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal tests out by lane."""
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return lane_of(nodeid)

    return Lanes(config, log)
