"""MCP bundles: unpacked once, and never outside their folder."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from mcproxy.configuration.expansion import referred
from mcproxy.configuration.packages.bundle import MAX_BYTES, offer_of, unpack
from mcproxy.configuration.packages.offer import Input, Values, Variable
from mcproxy.configuration.problems import ConfigurationError

MANIFEST = {
    "name": "my server",
    "server": {
        "type": "node",
        "entry_point": "server/index.js",
        "mcp_config": {
            "command": "node",
            "args": ["${__dirname}/server/index.js", "${user_config.folder}", "--debug=${user_config.debug}"],
            "env": {"KEY": "${user_config.api-key}"},
        },
    },
    "user_config": {
        "folder": {"type": "directory", "default": "/srv"},
        "debug": {"type": "boolean", "default": False},
        "api-key": {"type": "string", "sensitive": True, "default": "ignored"},
    },
}


def bundled(folder: Path, files: Mapping[str, str], manifest: object = MANIFEST) -> Path:
    path = folder / "x.mcpb"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def unpacked(path: Path, folder: Path) -> bool:
    return unpack(offer_of(path, folder).bundle or pytest.fail("no bundle"))


def test_a_bundle_is_an_offer_whose_command_points_into_its_folder_and_nothing_is_written(tmp_path: Path) -> None:
    offer = offer_of(bundled(tmp_path, {"server/index.js": "x"}), tmp_path / "bundles")
    assert offer.bundle is not None
    assert not (tmp_path / "bundles").exists()
    assert offer.inputs == (
        Input("api-key", secret=True, required=True),
        Input("debug", default=("false",)),
        Input("folder", default=("/srv",)),
    )
    values: Values = {"api-key": [Variable("KEY")], "debug": ["true"], "folder": ["/a", "/b"]}
    assert offer.entry(values) == {
        "command": "node",
        "args": [f"{offer.bundle.target}/server/index.js", "/a", "/b", "--debug=true"],
        "env": {"KEY": "${KEY}"},
    }


def test_a_bundle_is_unpacked_once(tmp_path: Path) -> None:
    path = bundled(tmp_path, {"server/index.js": "x"})
    assert unpacked(path, tmp_path / "bundles")
    (place,) = (tmp_path / "bundles").iterdir()
    assert place.name.startswith("my-server-")
    assert (place / "server" / "index.js").read_text() == "x"
    (place / "state").touch()
    assert not unpacked(path, tmp_path / "bundles")
    assert (place / "state").exists(), "it was not unpacked again"


def test_a_bundle_that_was_changed_after_it_was_shown_is_refused(tmp_path: Path) -> None:
    offer = offer_of(bundled(tmp_path, {"a": "1"}), tmp_path / "bundles")
    bundled(tmp_path, {"a": "2"})
    with pytest.raises(ConfigurationError, match="was changed meanwhile"):
        unpack(offer.bundle or pytest.fail("no bundle"))
    assert not (tmp_path / "bundles").exists()


@pytest.mark.parametrize("text", ["${AWS_SECRET}", "${env:AWS_SECRET}", "${file:/etc/passwd}", "${user_config.b}"])
def test_r90_neither_the_manifest_nor_a_default_refers_to_a_variable(tmp_path: Path, text: str) -> None:
    config = {"command": "run", "args": [text, "$${user_config.a}"], "env": {"A": text}}
    asked = {"a": {"default": f"{text}{{AWS_SECRET}}"}, "b": {"default": "{AWS_SECRET}"}}
    manifest = {"server": {"mcp_config": config}, "user_config": asked}
    offer = offer_of(bundled(tmp_path, {}, manifest), tmp_path / "bundles")
    values = {input.name: input.default or () for input in offer.inputs}
    assert list(referred(offer.entry(values))) == []


def test_a_default_may_name_the_users_folders(tmp_path: Path) -> None:
    config = {"command": "run", "args": ["${user_config.a}", "${HOME}${/}x"]}
    asked = {"a": {"default": ["${HOME}", "${DOCUMENTS}/x"], "multiple": True}}
    offer = offer_of(bundled(tmp_path, {}, {"server": {"mcp_config": config}, "user_config": asked}), tmp_path)
    assert offer.inputs[0].default == (str(Path.home()), f"{Path.home()}/Documents/x")


def test_another_version_has_another_folder(tmp_path: Path) -> None:
    unpacked(bundled(tmp_path, {"a": "1"}), tmp_path / "bundles")
    unpacked(bundled(tmp_path, {"a": "2"}), tmp_path / "bundles")
    assert len(list((tmp_path / "bundles").iterdir())) == 2


@pytest.mark.parametrize("name", ["../out", "/etc/out", "a/../../out", "..\\out", "C:\\out"])
def test_a_file_outside_of_the_bundle_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="outside of itself"):
        unpacked(bundled(tmp_path, {"good": "x", name: "x"}), tmp_path / "bundles")
    assert not (tmp_path / "bundles").exists()


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    path = bundled(tmp_path, {})
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(ConfigurationError, match="symbolic link"):
        unpacked(path, tmp_path / "bundles")


def test_too_much_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="more than"):
        unpacked(declaring(bundled(tmp_path, {}), MAX_BYTES), tmp_path / "bundles")
    assert not (tmp_path / "bundles").exists()


def test_a_file_that_is_larger_than_it_says_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="CRC"):
        unpacked(declaring(bundled(tmp_path, {}), 1), tmp_path / "bundles")
    assert not list((tmp_path / "bundles").iterdir())


def declaring(path: Path, size: int) -> Path:
    """A bundle with one more file, of some bytes, which says that it has `size`."""
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("more", "some bytes")
        archive.getinfo("more").file_size = size
    return path


@pytest.mark.parametrize("manifest", [[], {}, {"server": {}}, {"server": {"mcp_config": {"command": 1}}}])
def test_a_bundle_without_a_command_is_refused(tmp_path: Path, manifest: object) -> None:
    with pytest.raises(ConfigurationError, match="manifest"):
        unpacked(bundled(tmp_path, {}, manifest), tmp_path / "bundles")


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.mcpb").write_text("no zip")
    with pytest.raises(ConfigurationError, match="not a bundle"):
        unpacked(tmp_path / "x.mcpb", tmp_path)
