"""Two lanes of tests, for a run over two processes (`pytest -n 2`, as `make test` does where there are two processors).

In one lane run the tests that compute, and those of the bus; in the other all that start houses, edges and browsers. So
no two houses share the machine, and a test that waits for something waits beside one busy core, hardly ever beside
another that waits. A test belongs to a lane by its folder, and within a lane tests keep their order. The folders are
dealt out so that both lanes take about as long.
"""

from __future__ import annotations

from typing import Any

import pytest

_COMPUTES = tuple(
    f"tests/{folder}/"
    for folder in (
        "kernels",
        "model_svc",  # starts processes, but these compute too
        "wire",  # starts servers, but no house
    )
)


def lane_of(node_id: str) -> str:
    """Return the lane of a test."""
    return "computes" if node_id.startswith(_COMPUTES) else "lives"


@pytest.hookimpl(optionalhook=True)  # there is none without the plugin
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal tests out by lane."""
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return lane_of(nodeid)

    return Lanes(config, log)
