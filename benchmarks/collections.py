"""Public collections of tools and queries, read from git clones: pinned commits of data that others publish.

Nothing of them is kept here: `python -m benchmarks.collections FOLDER` fetches them. A collection is read from the
first clone that has its commit; a query's hash says whether it is of the half that weights are tuned on, or of the half
that is held out.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mcproxy.catalog.search.ranking import ToolText

Read = Callable[[str], str]
"""The text of a file of the collection's repository, by its path."""

MAX_QUERIES: Final = 1000
"""Queries of one collection, evenly spread over all that it has."""


@dataclass(frozen=True)
class Query:
    text: str
    right: frozenset[str]
    """The names of the tools that the query is for."""

    @property
    def held_out(self) -> bool:
        return hashlib.sha256(self.text.encode()).digest()[0] % 2 == 1


@dataclass(frozen=True)
class Collection:
    tools: Mapping[str, ToolText]
    queries: Sequence[Query]


@dataclass(frozen=True)
class Source:
    """A collection in a public repository at one commit, and the licence of its data there."""

    name: str
    repository: str
    commit: str
    licence: str
    load: Callable[[Read], Collection]

    def read(self, clones: Sequence[Path]) -> Collection | None:
        """The collection; None where no clone has its commit."""
        clone = next((clone for clone in clones if _has(clone, self.commit)), None)
        if clone is None:
            return None
        found = self.load(lambda path: _git(clone, "show", f"{self.commit}:{path}"))
        known = [query for query in found.queries if query.right and query.right <= found.tools.keys()]
        step = max(1, len(known) // MAX_QUERIES)
        return Collection(found.tools, known[::step][:MAX_QUERIES])


def _has(clone: Path, commit: str) -> bool:
    done = subprocess.run(["git", "-C", clone, "cat-file", "-e", commit], capture_output=True, check=False)
    return done.returncode == 0


def _git(clone: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", clone, *arguments], capture_output=True, check=True, text=True).stdout


def metatool(read: Read) -> Collection:
    """Plugins for a chat, by a name and a sentence; queries for one each."""
    tools = {
        name: ToolText(name, description=text) for name, text in json.loads(read("dataset/plugin_des.json")).items()
    }
    rows = csv.DictReader(io.StringIO(read("dataset/data/all_clean_data.csv")))
    return Collection(tools, [Query(row["Query"], frozenset({row["Tool"]})) for row in rows])


def toolalpaca(read: Read) -> Collection:
    """Functions of simulated and of real web APIs; a query has the calls that answer it."""
    tools: dict[str, ToolText] = {}
    queries: list[Query] = []
    for file in ("data/eval_simulated.json", "data/eval_real.json"):
        for api in json.loads(read(file)):
            for name, text in api["Function_Description"].items():
                if name == "components":  # shapes that the functions share
                    continue
                described, given = _function(text)
                tools[f"{api['Name']}.{name}"] = ToolText(
                    name, description=described, parameters=" ".join(given),
                    parameter_descriptions=" ".join(given.values()), upstream=api["Name"],
                )  # fmt: skip
            for text, golden in zip(api["Instructions"], api.get("Golden_Answers", ()), strict=False):
                used = (f"{api['Name']}.{step['Action']}" for step in golden if step["Action"] != "getDetails")
                queries.append(Query(text, frozenset(used)))
    return Collection(tools, queries)


def _function(text: str) -> tuple[str, dict[str, str]]:
    """A function's description, and its parameters with theirs."""
    described, _, rest = text.partition("\nParameters: ")
    try:
        given = json.loads(rest.partition("\nOutput:")[0])
    except ValueError:
        given = {}
    return described, {name: str(about) for name, about in given.items()}


def livemcp(read: Read) -> Collection:
    """Tools of real MCP servers; tasks of several steps, each with the tools that an annotator used."""
    tools: dict[str, ToolText] = {}
    for entry in json.loads(read("tools/LiveMCPTool/tools.json")):
        for server, offered in entry["tools"].items():
            for tool in offered["tools"]:
                tools.setdefault(tool["name"], _of_schema(tool, server))
    tasks = json.loads(read("annotated_data/all_annotations.json"))
    return Collection(tools, [Query(task["Question"], _steps(task["Annotator Metadata"]["Tools"])) for task in tasks])


def _of_schema(tool: dict[str, Any], server: str) -> ToolText:
    properties: dict[str, Any] = (tool.get("inputSchema") or {}).get("properties") or {}
    return ToolText(
        tool["name"],
        description=tool.get("description") or "",
        parameters=" ".join(properties),
        parameter_descriptions=" ".join(str(each.get("description", "")) for each in properties.values()),
        upstream=server,
    )


def _steps(text: str) -> frozenset[str]:
    return frozenset(re.sub(r"^\d+\.\s*", "", line).strip() for line in text.splitlines() if line.strip())


def sealtools(read: Read) -> Collection:
    """Functions that a model wrote for many trades; queries for one or several, of trades seen and unseen."""
    tools = {}
    for line in read("Seal-Tools_Dataset/tool.jsonl").splitlines():
        tool = json.loads(line)
        given = {name: str(each.get("description", "")) for name, each in tool["parameters"].items()}
        tools[tool["api_name"]] = ToolText(
            tool["api_name"], description=tool["api_description"], parameters=" ".join(given),
            parameter_descriptions=" ".join(given.values()), upstream=tool["field"],
        )  # fmt: skip
    lines = [read(f"Seal-Tools_Dataset/test_{split}_domain.jsonl").splitlines() for split in ("in", "out")]
    found = [json.loads(line) for part in lines for line in part]
    return Collection(tools, [Query(one["query"], frozenset(step["api"] for step in one["calling"])) for one in found])


SOURCES: Final = (
    Source("MetaTool", "HowieHwong/MetaTool", "35e81bb7576826e980c80fed8f8c0a2b4a1e6fbb", "MIT", metatool),
    Source("ToolAlpaca", "tangqiaoyu/ToolAlpaca", "189069998d64a7baf1b4a1c3c4b2e75eb9d05532", "Apache-2.0", toolalpaca),
    Source(
        "LiveMCPBench", "icip-cas/LiveMCPBench", "a928e57d1ee7a25579b9a7036030faffff72d15b", "Apache-2.0", livemcp
    ),
    Source("Seal-Tools", "fairyshine/Seal-Tools", "ce753ecd60ed08dd376984035de531ab8421f1c6", "Apache-2.0", sealtools),
)  # fmt: skip


def fetch(folder: Path) -> None:
    """Fetches what is missing. Raises CalledProcessError where a repository cannot be had."""
    for source in SOURCES:
        clone = folder / source.name
        if _has(clone, source.commit):
            continue
        clone.mkdir(parents=True, exist_ok=True)
        _git(clone, "init", "--quiet")
        _git(clone, "fetch", "--quiet", "--depth=1", f"https://github.com/{source.repository}", source.commit)


if __name__ == "__main__":
    fetch(Path(sys.argv[1]))
