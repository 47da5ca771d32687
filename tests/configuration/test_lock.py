"""The files that a configuration names for pins and the audit; `tests/access/test_pins.py` reads and writes locks."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.configuration.loading import Configuration, load_configuration
from mcproxy.configuration.lock import parse_lock, render
from mcproxy.configuration.problems import ConfigurationError
from mcproxy.protocol.eras import LATEST, Era
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from mcproxy.settings.access.pins import Approved, Manifest


def configured(folder: Path, access: str) -> Configuration:
    path = folder / "mcproxy.yaml"
    path.write_text(f"access: {{{access}}}\nmcpServers: {{}}\n")
    return load_configuration(path, {})


def test_files_are_looked_for_beside_the_configuration(tmp_path: Path) -> None:
    access = configured(tmp_path, "audit: {file: a/audit.jsonl}, pins: {mode: warn}").settings.access
    assert access.audit.file == str(tmp_path / "a" / "audit.jsonl")
    assert access.pins.file == str(tmp_path / "mcproxy.lock")


def test_the_lock_is_read_and_watched_even_before_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "mcproxy.lock"
    before = configured(tmp_path, "pins: {mode: enforce}")
    assert path in before.files
    assert before.settings.access.pins.lock == {}
    path.write_text(render({"up": Approved("Be kind.")}))
    after = configured(tmp_path, "pins: {mode: enforce}")
    assert after.settings.access.pins.lock["up"].instructions == "Be kind."
    assert after.settings != before.settings


MANIFEST = Manifest(
    Era.STATELESS,
    LATEST,
    {"tools": raw({"listChanged": True})},
    raw({"name": "up", "version": "1"}),
    "Be kind.\n",
    {
        Kind.TOOLS: (Raw(b'{ "name":"a",  "n": 1.0 }'), raw({"name": "b", "description": "\u200bé"})),
        Kind.RESOURCES: (raw({"uri": "file:///a", "name": "a"}),),
        Kind.TEMPLATES: (raw({"uriTemplate": "file:///{a}", "name": "a"}),),
        Kind.PROMPTS: (),
        Kind.SKILLS: (raw({"uri": "skill://a/SKILL.md", "frontmatter": {}, "resources": "dynamic"}),),
    },
)


def test_a_manifest_is_read_as_it_was_written_with_each_entry_byte_for_byte() -> None:
    text = render({"up": Approved("Be kind.", manifest=MANIFEST)})
    assert text.isascii()
    assert parse_lock(text, "mcproxy.lock")["up"].manifest == MANIFEST


@pytest.mark.parametrize("entry", ["[]", "{", "1"])
def test_a_manifest_with_an_entry_that_is_no_object_is_refused(entry: str) -> None:
    lists = {Kind.TOOLS: (Raw(entry.encode()),)}
    text = render({"up": Approved(manifest=replace(MANIFEST, lists=lists))})
    with pytest.raises(ConfigurationError, match="is not a valid lock file"):
        parse_lock(text, "mcproxy.lock")


def test_the_lock_is_read_for_a_server_that_starts_on_demand_though_pins_are_off(tmp_path: Path) -> None:
    (tmp_path / "mcproxy.lock").write_text(render({"up": Approved(manifest=MANIFEST)}))
    path = tmp_path / "mcproxy.yaml"
    path.write_text("mcpServers: {up: {command: x, start: on_demand}}\n")
    found = load_configuration(path, {})
    assert found.settings.access.pins.lock["up"].manifest == MANIFEST
    assert tmp_path / "mcproxy.lock" in found.files


def test_a_lock_that_is_not_understood_is_a_problem_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "mcproxy.lock").write_text("<<<<<<< HEAD\n")
    with pytest.raises(ConfigurationError, match=r"mcproxy\.lock: is not a valid lock file"):
        configured(tmp_path, "pins: {mode: enforce}")


@pytest.mark.parametrize("mode", ["off", "false", "'off'"])
def test_pins_are_off_as_yaml_says_it_and_then_no_lock_is_read(tmp_path: Path, mode: str) -> None:
    (tmp_path / "mcproxy.lock").write_text("no lock")
    assert configured(tmp_path, f"pins: {{mode: {mode}}}").settings.access.pins.mode == "off"
