"""What the documents name exists: settings, commands, options and metrics, in prose as well as in examples."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from mcproxy.catalog.search.own_tools import DESCRIBE, FIND
from mcproxy.configuration.schema import SERVER, schema
from tests.deploy.metrics_table import rows
from tests.docs.diagrams import ROOT
from tests.docs.generated import command_names, pages, reference_of

CODE = re.compile(r"`([^`\n]+)`")
SECTIONS = ("proxy", "access", "admin", "oauth", "limits", "bridge", "timeouts", "cache", "authentication", "policy")
SETTING = re.compile(rf"(?:{'|'.join(SECTIONS)})(?:\.[a-z_]+)+")
BARE = re.compile(r"`([a-z]+(?:_[a-z]+)+)(?:: [^`]*)?`")
COMMAND = re.compile(r"(?:^|[;&|]\s*)mcproxy ([a-z]+)")
METRIC = re.compile(r"\bmcproxy_[a-z_]+[a-z]\b(?!\{)|\bmcproxy_[a-z_]+[a-z](?=\{)")
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


@cache
def paths() -> set[str]:
    """Every key of the configuration, dotted, from its section down."""
    whole = schema()
    found: set[str] = set()

    def descend(prefix: str, name: str) -> None:
        for key, member in whole["$defs"][name]["properties"].items():
            path = f"{prefix}.{key}" if prefix else key
            found.add(path)
            target, _ = reference_of(member)
            if target is not None:
                descend(path, target)

    descend("", SERVER)
    for section in ("proxy", "access", "endpoints", "admin", "cluster"):
        target, _ = reference_of(whole["properties"][section])
        assert target is not None
        descend(section, target)
    return found


def spans(page: Path) -> Iterator[str]:
    yield from CODE.findall(page.read_text())


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_setting_that_a_page_names_exists(page: Path) -> None:
    known = paths()
    named = {span for span in spans(page) if SETTING.fullmatch(span)}
    files = {f"{name}.yaml" for name in SECTIONS}
    assert [
        name for name in sorted(named - files) if not any(path == name or path.endswith(f".{name}") for path in known)
    ] == []


def values() -> set[str]:
    """Every value of the settings that have a fixed choice of them."""
    texts = re.findall(r'"(?:enum|const)": (\[.*?\]|".*?")', json.dumps(schema()))
    return {value for text in texts for value in re.findall(r'"(.*?)"', text)}


def test_every_key_that_a_remedy_names_without_its_section_exists() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text()
    remedies = [line.split("` | ", 1)[1] for line in page.splitlines() if line.startswith("| `") and "` | " in line]
    named = {word for remedy in remedies for word in BARE.findall(remedy)}
    assert len(named) > 20
    assert sorted(named - {path.rpartition(".")[2] for path in paths()} - values() - {FIND, DESCRIBE}) == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    known = command_names()
    heads = {name.split()[0] for name in known}
    typed = [word for span in spans(page) for word in COMMAND.findall(span)]
    lines = [line[2:] for line in page.read_text().splitlines() if line.startswith("$ ")]
    typed += [word for line in lines for word in COMMAND.findall(line)]
    assert [word for word in typed if word not in heads] == []


@cache
def metrics() -> frozenset[str]:
    return frozenset(row.split("`")[1] for row in rows())


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_metric_that_a_page_names_exists(page: Path) -> None:
    known = metrics()
    named = {SUFFIX.sub("", name) for name in METRIC.findall(page.read_text())}
    assert sorted(named - known) == []


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text()
    assert set(re.findall(r"^### `mcproxy (.+)`$", page, re.MULTILINE)) == command_names()


def test_the_lines_of_nginx_that_are_explained_are_those_of_the_sample() -> None:
    sample = (ROOT / "deploy/reverse-proxy/nginx.conf").read_text()
    page = (ROOT / "docs/how-to/behind-nginx.md").read_text()
    table = page.partition("| line | without it |")[2].partition("\n\n")[0]
    lines = [line.split(" | ")[0].replace("\\|", "|") for line in table.splitlines()[2:]]
    assert len(lines) > 5
    assert [part for line in lines for part in CODE.findall(line) if part not in sample] == []
