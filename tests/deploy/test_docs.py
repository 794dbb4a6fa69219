"""Pages of the documentation point at what exists: links, headings, files, modules, flags, make targets, commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from headrace.__main__ import app
from headrace.pull.gguf_config import KNOWN
from model_svc.models.registry import MODELS, TEXT_PARTS
from wire.model_card import CROSS_ENCODERS, ENCODERS

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SPAN = re.compile(r"`([^`\n]+)`")
# What a reader would look for in the tree: a file with one of these endings below a folder of ours.
OWN = "wire|gateway|tokenizer_svc|cache_svc|model_svc|kernels|headrace|loadtest|deploy|docs|tests|constraints"
FILE = re.compile(rf"(?<![\w./-])((?:{OWN})/[\w./-]*\w\.(?:py|c|h|md|toml|yaml|yml|json|txt|js|svg|png|lark))\b")
MODULE = re.compile(rf"python -m ((?:{OWN})[\w.]*\w)((?: [^\n`|#]*)?)")
MAKE = re.compile(r"(?<![\w-])make ([a-z][a-z-]+)(?= |`|$)", re.MULTILINE)
COMMAND = re.compile(r"(?<![\w/.-])(?<!--user )headrace ([a-z]+)((?: [^\n`|#]*)?)")
FLAG = re.compile(r"(?<=[\s\[])--([a-z][a-z-]+)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Return the names that headings have in links, as GitHub makes them."""
    headings = re.findall(r"^#{1,6} +(.+)$", text_of(page), re.MULTILINE)
    plain = (re.sub(r"[`*]", "", heading).strip().lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def commands(page: Path) -> Iterator[str]:
    """Return what is set as code: spans, fenced and indented blocks."""
    text = text_of(page)
    yield from SPAN.findall(text)
    yield from re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    yield from re.findall(r"^    .+$", text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in LINK.findall(text_of(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link}: no such file"
        assert not heading or heading in anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    missing = {path for path in FILE.findall(text_of(page)) if "<" not in path and not (ROOT / path).exists()}
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_that_are_run_exist_and_know_the_flags_given(page: Path) -> None:
    for command in commands(page):
        for module, arguments in MODULE.findall(command):
            place = ROOT / module.replace(".", "/")
            source = place.with_suffix(".py") if place.with_suffix(".py").exists() else place / "__main__.py"
            assert source.exists(), f"python -m {module}: no such module"
            known = "".join(file.read_text() for file in [source, *source.parent.glob("*.py")])
            for flag in FLAG.findall(arguments):
                assert f'"--{flag}"' in known, f"python -m {module} has no --{flag}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {target for command in commands(page) for target in MAKE.findall(command)}
    assert asked <= targets


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist_and_know_the_flags_given(page: Path) -> None:
    known: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    for text in commands(page):
        for name, arguments in COMMAND.findall(text):
            command = known.get(name)
            assert command is not None, f"headrace {name}: no such command"
            words = arguments.split()
            if words and hasattr(command, "commands"):
                command = command.commands[words[0]]
            if name not in ("serve", "bench"):  # their flags are settings, or another parser's
                flags = {option.removeprefix("--") for param in command.params for option in param.opts}
                assert set(FLAG.findall(arguments)) <= flags, f"headrace {name}{arguments}"


def figures(text: str) -> list[str]:
    return re.findall(r"\d[\d,.]*\d|\d", text)


def section(page: str, title: str) -> str:
    return re.split(r"^## ", (ROOT / page).read_text().split(f"\n## {title}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_figures_of_the_readme_are_those_that_were_measured_last() -> None:
    known = set(figures((ROOT / "docs/performance.md").read_text()))
    assert not [figure for figure in figures(section("README.md", "How fast")) if figure not in known]


def test_figures_of_the_one_screen_stand_in_the_tables_behind_it() -> None:
    page, screen = (ROOT / "docs/performance.md").read_text(), section("docs/performance.md", "In one screen")
    known = set(figures(page.replace(screen, "").split("\n## GPU kernels\n")[1]))
    shown = [figure for bold in re.findall(r"\*\*([^*]*\d[^*]*)\*\*", screen) for figure in figures(bold)]
    assert len(shown) > 40
    assert not [figure for figure in shown if figure not in known]


def test_the_page_of_models_has_every_architecture_and_no_other() -> None:
    named = set(SPAN.findall(text_of(ROOT / "docs/models.md")))
    served = {*MODELS, *(whole for whole, _ in TEXT_PARTS), *ENCODERS, *CROSS_ENCODERS}
    assert {name for name in named if re.search(r"For[A-Z]\w+$|[a-z]Model$", name)} == served
    assert named >= KNOWN
