"""What a release is made of, built and checked by the script; and the project's listing for the registry."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from mcproxy import __version__
from mcproxy.configuration.packages.server_json import offer_of
from tests.deploy.needs import DEPLOY, need
from tests.deploy.wheel import ROOT

LISTING = json.loads((ROOT / "server.json").read_text())
WHEEL, SDIST = f"mcproxy-{__version__}-py3-none-any.whl", f"mcproxy-{__version__}.tar.gz"


def release(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [str(DEPLOY / "release.sh"), *map(str, arguments)]
    environment = {"PYTHON": sys.executable, "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_the_listing_is_what_the_registry_takes_and_what_we_add_ourselves() -> None:
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", LISTING["name"])
    assert 0 < len(LISTING["description"]) <= 100
    (package,) = LISTING["packages"]
    assert {LISTING["version"], package["version"]} == {__version__}
    assert package["transport"] == {"type": "stdio"}
    assert offer_of(LISTING, "server.json").entry({"config": ["/c"]}) == {
        "command": "uvx",
        "args": [f"mcproxy=={__version__}", "serve", "--stdio", "--config", "/c"],
    }


def test_a_release_is_built_the_same_twice_with_sums_that_are_signed(tmp_path: Path) -> None:
    key, built, signers = tmp_path / "key", tmp_path / "dist", tmp_path / "signers"
    subprocess.run([need("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    done = release("--owner", "someone", "--sign", key, built)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in built.iterdir()} == {WHEEL, SDIST, "server.json", "SHA256SUMS", "SHA256SUMS.sig"}
    assert json.loads((built / "server.json").read_text())["name"] == "io.github.someone/mcproxy"
    sums = (built / "SHA256SUMS").read_bytes()
    subprocess.run(["sha256sum", "--check", "--quiet"], input=sums, cwd=built, check=True)
    signers.write_text(f"maintainers {key.with_suffix('.pub').read_text()}")
    verify: list[str | Path] = [need("ssh-keygen"), "-Y", "verify", "-f", signers, "-I", "maintainers", "-n", "mcproxy"]
    verify += ["-s", built / "SHA256SUMS.sig"]
    assert subprocess.run(verify, input=sums, capture_output=True, check=False).returncode == 0
    assert subprocess.run(verify, input=sums + b"x", capture_output=True, check=False).returncode != 0
    again = release(built)
    assert (again.returncode, "is not empty" in again.stderr) == (1, True)
