"""`python -m tests.system.works_with`: plays the whole matrix, and writes down which SDKs' clients and servers worked.

`docs/reference/works-with.md` has its table from the file that this writes. Needs every toolchain; writes nothing where
a test was skipped.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = Path(__file__).with_name("works_with.json")
MATRIX: Final = "tests/system/test_matrix.py"

NAMES: Final = {
    "python": "Python",
    "python1": "Python, `mcp` 1",
    "python2": "Python, `mcp` 2",
    "typescript": "TypeScript",
    "typescript1": "TypeScript, `@modelcontextprotocol/sdk`",
    "typescript2": "TypeScript, `@modelcontextprotocol/client`",
    "go": "Go, `modelcontextprotocol/go-sdk`",
    "mcpgo": "Go, `mark3labs/mcp-go`",
    "rust": "Rust, `rmcp`",
    "java": "Java, `io.modelcontextprotocol.sdk:mcp`",
}
"""How the page calls what the matrix calls by the key."""


class Tally:
    """A pytest plugin: the number of tests that passed, and of all, for each pair of a client's and a server's SDK."""

    def __init__(self) -> None:
        self.pairs: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
        self.skipped = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.skipped |= report.skipped
        case = re.search(r"\[(\w+)-\w+-\w+-(\w+)-\w+-\w+\]$", report.nodeid)
        if case and (report.when == "call" or report.failed):
            count = self.pairs[case[1]][case[2]]
            count[0] += report.passed
            count[1] += 1


def versions() -> dict[str, str]:
    """The pinned version of each SDK, as the locks have it."""
    node = json.loads((ROOT / "tests/system/node/package.json").read_text())["dependencies"]
    python1, python2 = (
        _version(r"^mcp==(\S+)", ROOT / lock) for lock in ("tests/system/sdk1.lock", "requirements-dev.lock")
    )
    go, mcpgo = (
        _version(rf"{name} v(\S+)", ROOT / "tests/system/go/go.mod")
        for name in ("modelcontextprotocol/go-sdk", "mark3labs/mcp-go")
    )
    return {
        "python1": python1,
        "python2": python2,
        "python": python2,
        "typescript1": node["@modelcontextprotocol/sdk"],
        "typescript2": node["@modelcontextprotocol/client"],
        "typescript": node["@modelcontextprotocol/server"],
        "go": go,
        "mcpgo": mcpgo,
        "rust": _version(r'^rmcp = .*"=([^"]+)"', ROOT / "tests/system/rust/Cargo.toml"),
        "java": _version(
            r"<artifactId>mcp</artifactId>\s*<version>(\S+)</version>", ROOT / "tests/system/java/pom.xml"
        ),
    }


def _version(pattern: str, file: Path) -> str:
    found = re.search(pattern, file.read_text(), re.MULTILINE)
    assert found is not None, f"{file} has no {pattern}"
    return found[1]


def table() -> str:
    """The last results: a row for each client, a column for each server, the tests that passed of those that ran."""
    kept: dict[str, Any] = json.loads(RESULTS.read_text())
    servers = list(dict.fromkeys(server for row in kept["pairs"].values() for server in row))

    def title(sdk: str) -> str:
        return f"{NAMES[sdk]} {kept['versions'][sdk]}"

    rows = [
        f"| client \\ server | {' | '.join(title(server) for server in servers)} |",
        "|---" * (len(servers) + 1) + "|",
    ]
    for client, met in kept["pairs"].items():
        counts = [f"{met[server][0]} of {met[server][1]}" if server in met else "–" for server in servers]
        rows.append(f"| {title(client)} | {' | '.join(counts)} |")
    return "\n".join(rows)


def main() -> int:
    tally = Tally()
    status = pytest.main([MATRIX, "-p", "no:cacheprovider"], plugins=[tally])
    if tally.skipped or not tally.pairs:
        print("nothing is written: tests were skipped", file=sys.stderr)
        return 1
    RESULTS.write_text(json.dumps({"versions": versions(), "pairs": tally.pairs}, indent=2) + "\n")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
