"""`mcproxy keys`: what it prints is all that is needed, and is good."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
import yaml

from mcproxy.access.keys import KeyRing, key_digest
from mcproxy.cli.commands import main
from mcproxy.configuration.loading import load


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_what_is_printed_makes_a_configuration_in_which_the_key_is_good(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("keys", "add", "ci-bot", "--role", "reader", "--role", "writer", "--expires-in", "90d") == 0
    key, snippet = capsys.readouterr().out.split("\n", 1)
    file = tmp_path / "mcproxy.yaml"
    file.write_text(snippet)
    authentication = load(file, {}).access.authentication
    assert authentication.required
    holder = KeyRing(authentication.keys).find(key_digest(key))
    assert holder is not None
    assert (holder.principal.name, holder.principal.roles) == ("ci-bot", frozenset({"reader", "writer"}))
    assert holder.expires is not None
    left = holder.expires - datetime.datetime.now(datetime.UTC).timestamp()
    assert 89 * 86400 < left <= 90 * 86400


def test_the_snippet_holds_no_key(capsys: pytest.CaptureFixture[str]) -> None:
    run("keys", "add", "ci-bot")
    key, snippet = capsys.readouterr().out.split("\n", 1)
    assert key not in snippet
    assert yaml.safe_load(snippet)["access"]["authentication"]["keys"].keys() == {"ci-bot"}


def test_programs_get_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("keys", "add", "ci-bot", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (entry,) = document["access"]["authentication"]["keys"]["ci-bot"]
    assert entry == {"sha256": key_digest(document["key"]).hex()}


@pytest.mark.parametrize("arguments", [["a b"], [""], ["a:b"], ["../x"], ["ok", "--expires-in", "soon"], ["-x"]])
def test_what_cannot_be_a_caller_or_a_time_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("keys", "add", *arguments) == 2
    assert capsys.readouterr().out == ""
