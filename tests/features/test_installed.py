"""A feature of another package, as the page on features shows it, installed by its entry point."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/how-to/write-a-feature.md"
SERVER = """
import json, sys

INFO = {"name": "cards", "version": "1"}
ANSWERS = {
    "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO},
    "tools/list": {"tools": [{"name": "card", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "pay with 1234-5678-9012-3456"}]},
}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = ANSWERS.get(asked["method"])
        rest = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **rest}), flush=True)
"""


def block(language: str) -> str:
    found = re.search(rf"```{language}[^\n]*\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the package as pip would install it, and a configuration."""
    (tmp_path / "redact_feature.py").write_text(block("python"))
    entry = re.search(r'^redact = "(.+)"$', block("toml"), re.MULTILINE)
    assert entry is not None
    info = tmp_path / "redact_feature-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: redact-feature\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[mcproxy.features]\nredact = {entry[1]}\n")
    (tmp_path / "server.py").write_text(SERVER)
    servers = {"cards": {"command": sys.executable, "args": [str(tmp_path / "server.py")], "prefix": ""}}
    text = f"{block('yaml')}mcpServers: {json.dumps(servers)}\n"
    (tmp_path / "mcproxy.yaml").write_text(text)
    return tmp_path


def mcproxy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{PAGE.parents[2]}"}
    command = [sys.executable, "-m", "mcproxy", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_feature_of_the_page_changes_results(folder: Path) -> None:
    shown = mcproxy(folder, "explain", "--pipeline", "-c", "mcproxy.yaml")
    assert "client\tRESULT\tredact\thides what features.redact.pattern matches" in shown.stdout, shown.stderr
    called = mcproxy(folder, "call", "card", "-c", "mcproxy.yaml")
    assert "pay with [hidden]" in called.stdout, called.stderr


def test_settings_of_an_installed_feature_are_checked(folder: Path) -> None:
    path = folder / "mcproxy.yaml"
    path.write_text(path.read_text().replace("pattern:", "patern:"))
    checked = mcproxy(folder, "check", "-c", "mcproxy.yaml")
    assert checked.returncode != 0
    assert "features.redact" in checked.stdout + checked.stderr


def test_a_feature_that_is_not_installed_is_named(folder: Path) -> None:
    path = folder / "mcproxy.yaml"
    path.write_text(path.read_text().replace("redact:", "reduct:"))
    checked = mcproxy(folder, "check", "-c", "mcproxy.yaml")
    assert checked.returncode != 0
    assert "no installed package has a feature of this name (installed: redact)" in checked.stdout + checked.stderr
