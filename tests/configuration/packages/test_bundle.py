"""MCP bundles: unpacked once, and never outside their folder."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from mcproxy.configuration.packages.bundle import MAX_BYTES, unpacked
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


def test_a_bundle_is_unpacked_and_its_command_points_into_it(tmp_path: Path) -> None:
    path = bundled(tmp_path, {"server/index.js": "x"})
    server = unpacked(path, tmp_path / "bundles")
    (place,) = (tmp_path / "bundles").iterdir()
    assert place.name.startswith("my-server-")
    assert (place / "server" / "index.js").read_text() == "x"
    assert server == {
        "command": "node",
        "args": [f"{place}/server/index.js", "/srv", "--debug=false"],
        "env": {"KEY": "${API_KEY}"},
    }
    (place / "state").touch()
    assert unpacked(path, tmp_path / "bundles") == server
    assert (place / "state").exists(), "it was not unpacked again"


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
