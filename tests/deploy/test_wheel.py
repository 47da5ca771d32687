"""The wheel as people install it: what it holds, and that it works where this repository is not."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path

import pytest

from mcproxy import __version__
from tests.deploy.wheel import QUIET, ROOT, build, run

UV, PIPX = "uv==0.13.8", "pipx==1.18.4"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration with a server of a few lines, which needs nothing of this repository."""
    server = tmp_path / "server.py"
    server.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    found = {'initialize': {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}},\n"
        "             'serverInfo': {'name': 's', 'version': '1'}},\n"
        "             'tools/list': {'tools': [{'name': 'hi', 'inputSchema': {'type': 'object'}}]}}\n"
        "    if 'id' in asked:\n"
        "        result = found.get(asked['method'])\n"
        "        answer = {'result': result} if result else {'error': {'code': -32601, 'message': 'no'}}\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], **answer}), flush=True)\n"
    )
    path = tmp_path / "mcproxy.yaml"
    path.write_text(json.dumps({"mcpServers": {"s": {"command": sys.executable, "args": [str(server)]}}}))
    return path


def test_it_holds_what_the_gateway_needs_and_no_test(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    expected = {str(path.relative_to(ROOT)) for path in tracked("mcproxy")}
    assert expected - set(names) == set(), "templates, styles and scripts too"
    assert {name.partition("/")[0] for name in names} == {"mcproxy", f"mcproxy-{__version__}.dist-info"}
    assert any(name.endswith("LICENSE") for name in names)


def tracked(folder: str) -> list[Path]:
    return [ROOT / name for name in run("git", "ls-files", folder, cwd=ROOT).splitlines()]


def test_it_works_where_this_repository_is_not(wheel: Path, config: Path, tmp_path: Path) -> None:
    # Its dependencies are those of this environment; only mcproxy itself is installed.
    target = tmp_path / "installed"
    run(sys.executable, "-m", "pip", "install", "--no-deps", *QUIET, "--target", target, wheel, cwd=tmp_path)
    program = ("-c", f"import sys; sys.path.insert(0, {str(target)!r}); from mcproxy.__main__ import main; main()")
    at = "import mcproxy; print(mcproxy.__file__)"
    assert str(target) in run(
        sys.executable, "-c", f"import sys; sys.path.insert(0, {str(target)!r}); {at}", cwd=tmp_path
    )
    listed = run(sys.executable, *program, "list", "tools", "-c", config, cwd=tmp_path)
    assert listed.startswith("s__hi")


@pytest.mark.skipif("CI" not in os.environ, reason="installs every dependency from the registry: CI's depth")
@pytest.mark.parametrize("installer", [UV, PIPX])
def test_it_is_installed_as_a_tool(wheel: Path, config: Path, tmp_path: Path, installer: str) -> None:
    venv = tmp_path / "installers"
    run(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    run(venv / "bin" / "pip", "install", *QUIET, installer, cwd=tmp_path)
    name = installer.partition("==")[0]
    command = ["tool", "install", "--python", sys.executable] if name == "uv" else ["install"]
    run(venv / "bin" / name, *command, wheel, cwd=tmp_path)
    program = tmp_path / ".local" / "bin" / "mcproxy"
    assert run(program, "--version", cwd=tmp_path) == f"mcproxy {__version__}\n"
    assert run(program, "list", "tools", "-c", config, cwd=tmp_path).startswith("s__hi")
