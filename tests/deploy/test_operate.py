"""docs/operate.md names every setting and every metric, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from headrace.roles import ROLES, settings_class
from headrace.settings import UpSettings
from tests.deploy.test_dashboards import exported
from tests.ring import Ring, make_ring, ring, tiny_model
from wire.settings import Settings

__all__ = ["make_ring", "ring", "tiny_model"]

TEXT = (Path(__file__).resolve().parent.parent.parent / "docs" / "operate.md").read_text()


def section(title: str) -> str:
    return re.split(r"^## ", TEXT.split(f"\n## {title}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_the_settings_table_is_complete_and_names_nothing_else() -> None:
    classes: list[type[Settings]] = [UpSettings, *map(settings_class, ROLES)]
    fields = {name for cls in classes for name in cls.__struct_fields__}
    named = set(re.findall(r"^\| `(\w+)` \|", section("Settings"), re.MULTILINE))
    assert named == fields


def test_the_settings_table_tells_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    home = str(Path("~").expanduser())
    told = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", section("Settings"), re.MULTILINE))
    num_compared = 0
    classes: list[type[Settings]] = [UpSettings, *map(settings_class, ROLES)]
    for cls in classes:
        for name, default in msgspec.to_builtins(cls()).items():
            words = told[name].replace("`", "").strip()
            in_words = default in (None, "", ()) or name == "runner" or (default == 0 and not words[:1].isdigit())
            if in_words and default is not False:  # worked out at the start
                continue
            text = ",".join(default) if isinstance(default, tuple) else str(default).replace(home, "~")
            value = text.lower().removesuffix(".0")
            assert words in (value, "8080 (up: 8000)" if name == "port" else value), f"{cls.__name__}.{name} is {value}"
            num_compared += 1
    assert num_compared > 100


@pytest.mark.anyio
async def test_the_metrics_table_is_complete_and_names_nothing_else(ring: Ring) -> None:
    samples = {re.sub(r"_(bucket|sum|count)$", "", name) for name in await exported(ring) if "_created" not in name}
    named = set(re.findall(r"`((?:headrace|gen_ai)_[a-z_]+[a-z])`", section("Metrics")))
    assert named == samples
