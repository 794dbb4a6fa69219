"""Three lanes of tests, for a run over three processes (`pytest -n 3`, as `make test` does on several processors).

In one lane run the tests of kernels and runners; in one those of the desks, which start parts: a bus, an edge, a
replica of several processes; in one those that start houses and browsers. So no two houses share the machine. Tests of
the latter two wait about as long as they compute, so that three lanes keep two processors busy. A test belongs to a
lane by its folder, and within a lane tests keep their order. The folders are dealt out so that all lanes take about as
long.

A process collects the tests of its lanes alone, and begins when it has them: to import all of them takes a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_FOLDERS = {
    "computes": ("kernels", "model_svc/runner"),
    "serves": ("cache_svc", "gateway", "model_svc", "tokenizer_svc", "wire"),
}
LANES = (*_FOLDERS, "lives")
_INPUT = "lanes"
_dealt: dict[int, Sequence[str]] = {}  # by specification of a process


def lane_of(node_id: str) -> str:
    """Return the lane of a test: the first that has its folder, or the one of houses."""
    for lane, folders in _FOLDERS.items():
        if node_id.startswith(tuple(f"tests/{folder}/" for folder in folders)):
            return lane
    return "lives"


def lanes_in(folder: str) -> set[str]:
    """Return the lanes of the tests in a folder."""
    inner = {lane for lane, names in _FOLDERS.items() for name in names if f"tests/{name}/".startswith(f"{folder}/")}
    return inner | {lane_of(f"{folder}/")}


def _lanes_of_process(config: pytest.Config) -> Sequence[str]:
    lanes: Sequence[str] = getattr(config, "workerinput", {}).get(_INPUT, LANES)
    return lanes


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing of lanes that are other processes'."""
    path = collection_path.relative_to(config.rootpath).as_posix()
    found = lanes_in(path) if collection_path.is_dir() else {lane_of(path)}
    return None if found.intersection(_lanes_of_process(config)) else True


def keep_own(items: list[pytest.Item], config: pytest.Config) -> None:
    """Take out tests of other processes' lanes: files that the command names are imported by all."""
    items[:] = [item for item in items if lane_of(item.nodeid) in _lanes_of_process(config)]


@pytest.hookimpl(optionalhook=True)  # there is none without the plugin
def pytest_configure_node(node: Any) -> None:
    """Deal the lanes out to the processes. One that replaces another has its specification, and gets its lanes."""
    dealt = LANES[len(_dealt) :: len(node.nodemanager.specs)]
    node.workerinput[_INPUT] = _dealt.setdefault(id(node.gateway.spec), dealt)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have each process run what it has collected, as soon as it has."""
    from xdist.scheduler import EachScheduling

    class Lanes(EachScheduling):  # type: ignore[misc]
        def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
            left = list(range(len(collection)))
            for before in self.node2collection:
                if before.gateway.spec is node.gateway.spec:  # it died, maybe before all others had begun
                    left = self._removed2pending.pop(before, [])
            self.node2collection[node] = collection
            self.node2pending[node] = left
            begun = {id(one.gateway.spec) for one in self.node2collection}
            self.collection_is_completed = len(begun) >= self.numnodes
            session: Any = config.pluginmanager.get_plugin("session")  # it has the count of this process alone
            session.testscollected = sum(map(len, self.node2collection.values()))
            node.send_runtest_some(left)
            node.shutdown()

        def schedule(self) -> None:
            """Do nothing: each process has begun."""

    return Lanes(config, log)
