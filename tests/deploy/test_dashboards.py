"""Dashboards and alerts ask for metrics and labels that a running edge really exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.ring import MODEL, Ring, make_ring, ring, tiny_model
from wire.metrics import note_process, show_trials
from wire.metrics import render as render_process

__all__ = ["make_ring", "ring", "tiny_model"]

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
NAME = re.compile(r"\b(?:headrace|gen_ai)_[a-z_]+\b")
SELECTOR = re.compile(r"\b((?:headrace|gen_ai)_[a-z_]+)\{([^}]*)\}")
GROUPED = re.compile(r"\bby \(([a-z_, ]+)\)")


def panels() -> list[dict[str, Any]]:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "headrace.json").read_text())
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    return asked + [rule["expr"] for group in rules["groups"] for rule in group["rules"]]


async def exported(ring: Ring) -> dict[str, set[str]]:
    """Return each sample's labels by its name, after one request."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    assert (await ring.http.post("/v1/chat/completions", json=body)).status_code == 200
    await ring.until_idle()
    note_process("ring")  # a ring in a test is no process of its own
    show_trials(MODEL)  # nor has its scripted replica an engine
    text = (await ring.http.get("/metrics")).text + (await render_process()).decode()
    families = list(text_string_to_metric_families(text))
    found: dict[str, set[str]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, {"instance"}).update(sample.labels)
    for family in families:  # what has not happened yet has a name only
        if not family.samples:
            found.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, {"instance"})
    return found


@pytest.mark.anyio
async def test_every_metric_asked_for_is_exported_with_the_labels_asked_for(ring: Ring) -> None:
    metrics = await exported(ring)
    labels_known = set().union(*metrics.values())
    for expression in expressions():
        wanted = set(NAME.findall(re.sub(r"\{[^}]*\}", "", GROUPED.sub("", expression))))
        assert wanted <= metrics.keys(), f"{sorted(wanted - metrics.keys())} in {expression}"
        for name, selector in SELECTOR.findall(expression):
            labels = {part.split("=")[0].rstrip("!~") for part in re.findall(r"[a-z_]+(?:=~|=|!=|!~)", selector)}
            assert labels <= metrics[name], f"{name} has no label {sorted(labels - metrics[name])}"
        for labels in GROUPED.findall(expression):
            assert {label.strip() for label in labels.split(",")} <= labels_known, expression


def test_what_every_edge_tells_of_a_replica_is_counted_once() -> None:
    for expression in expressions():
        for aggregation in re.findall(
            r"(\w+)(?: by \([a-z_, ]+\))? \((?:rate\()?headrace_(?:replica_|spec_decode_)", expression
        ):
            assert aggregation == "max", f"{aggregation} counts a replica once for each edge: {expression}"


@pytest.mark.anyio
async def test_every_metric_of_ours_is_looked_at(ring: Ring) -> None:
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) for text in expressions() for name in NAME.findall(text)}
    ours = {re.sub(r"_(bucket|sum|count)$", "", name) for name in await exported(ring) if not name.endswith("_created")}
    assert ours <= asked, f"on no panel: {sorted(ours - asked)}"


def test_panels_have_a_title_a_sentence_and_a_unit_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith(".")
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"]
        assert "max" not in defaults or defaults["unit"] == "percentunit", f"{panel['title']} is cut off"
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
