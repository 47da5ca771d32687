"""The pictures of the architecture agree with the contracts that import-linter holds."""

from __future__ import annotations

import re

import mcproxy.gateway
from tests.docs.diagrams import ROOT
from tests.docs.generated import contracts, layer_contract


def test_the_layers_in_the_packages_docstring_are_those_of_the_contract() -> None:
    assert mcproxy.__doc__ is not None
    picture = mcproxy.__doc__.partition("may not see each other\n")[2].partition("\n\n")[0]
    drawn = [re.split(r"\s{3,}", line.strip())[0] for line in picture.splitlines()]
    assert drawn == [" | ".join(layer) for layer in layer_contract()]


def test_the_docstring_of_the_gateway_has_its_rooms_and_who_never_sees_whom() -> None:
    text = mcproxy.gateway.__doc__
    assert text is not None
    rooms, _, below = text.partition("Rooms, and what each is for:")[2].strip("\n").partition("\n\n")
    folders = {path.parent.name for path in (ROOT / "mcproxy/gateway").glob("*/__init__.py")}
    assert {line.split()[0] for line in rooms.splitlines()} == folders
    (layers,) = (contract["layers"] for contract in contracts() if contract.get("containers") == ["mcproxy.gateway"])
    told = re.findall(r"`(\w+)`", below.partition("never")[0])
    assert " | ".join(told) in layers


def test_the_readme_names_every_package() -> None:
    table = (ROOT / "README.md").read_text().partition("## How the code is laid out")[2]
    packages = {path.parent.name for path in (ROOT / "mcproxy").glob("*/__init__.py")}
    assert {name for name in re.findall(r"`(\w+)/`", table) if (ROOT / "mcproxy" / name).is_dir()} == packages
