"""How public collections are read: each loader on a piece of its own format, and the halves of the queries."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks.collections import SOURCES, Collection, Query, Read, Source, livemcp, metatool, sealtools, toolalpaca
from mcproxy.catalog.search.ranking import ToolText


def test_metatool_is_a_sentence_for_each_plugin() -> None:
    files = {
        "dataset/plugin_des.json": '{"maps": "Finds places."}',
        "dataset/data/all_clean_data.csv": "Query,Tool\nWhere is it?,maps\n",
    }
    found = metatool(files.__getitem__)
    assert found.tools == {"maps": ToolText("maps", description="Finds places.")}
    assert found.queries == [Query("Where is it?", frozenset({"maps"}))]


def test_toolalpaca_is_functions_by_api() -> None:
    api = {
        "Name": "Sky",
        "Function_Description": {
            "look": 'Looks up.\nParameters: {"city": "Where."}\nOutput: Weather.',
            "components": "",
        },
        "Instructions": ["Look!"],
        "Golden_Answers": [[{"Action": "look", "Action_Input": "{}"}]],
    }
    files = {"data/eval_simulated.json": json.dumps([api]), "data/eval_real.json": "[]"}
    found = toolalpaca(files.__getitem__)
    assert found.tools == {"Sky.look": ToolText("look", "", "Looks up.", "city", "Where.", "Sky")}
    assert found.queries == [Query("Look!", frozenset({"Sky.look"}))]


def test_livemcpbench_is_tools_by_server() -> None:
    schema = {"properties": {"q": {"description": "Words."}}}
    tools = [{"tools": {"web": {"tools": [{"name": "find", "description": "Finds.", "inputSchema": schema}]}}}]
    tasks = [{"Question": "Find it", "Annotator Metadata": {"Tools": "1. find\n2. find"}}]
    files = {
        "tools/LiveMCPTool/tools.json": json.dumps(tools),
        "annotated_data/all_annotations.json": json.dumps(tasks),
    }
    found = livemcp(files.__getitem__)
    assert found.tools == {"find": ToolText("find", "", "Finds.", "q", "Words.", "web")}
    assert found.queries == [Query("Find it", frozenset({"find"}))]


def test_sealtools_is_lines_of_json() -> None:
    tool = {
        "api_name": "sum",
        "api_description": "Adds.",
        "field": "Maths",
        "parameters": {"a": {"description": "One."}},
    }
    query = {"query": "Add", "calling": [{"api": "sum"}]}
    files = {
        "Seal-Tools_Dataset/tool.jsonl": json.dumps(tool),
        "Seal-Tools_Dataset/test_in_domain.jsonl": json.dumps(query),
        "Seal-Tools_Dataset/test_out_domain.jsonl": "",
    }
    found = sealtools(files.__getitem__)
    assert found.tools == {"sum": ToolText("sum", "", "Adds.", "a", "One.", "Maths")}
    assert found.queries == [Query("Add", frozenset({"sum"}))]


def test_about_half_of_all_queries_are_held_out_and_always_the_same() -> None:
    held_out = [Query(f"query {number}", frozenset()).held_out for number in range(1000)]
    assert 400 < sum(held_out) < 600
    assert held_out[:3] == [Query(f"query {number}", frozenset()).held_out for number in range(3)]


def test_every_source_names_a_commit_and_a_licence_that_allows_to_pass_it_on() -> None:
    assert len(SOURCES) >= 3
    assert all(len(source.commit) == 40 and source.licence in {"MIT", "Apache-2.0"} for source in SOURCES)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "data").write_text("one\ntwo\nthree\n")
    for command in (
        ["init", "-q"],
        ["add", "data"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"],
    ):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    return tmp_path


def test_a_collection_is_read_at_its_commit_and_queries_for_unknown_tools_are_left_out(clone: Path) -> None:
    commit = subprocess.run(
        ["git", "-C", clone, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    (clone / "data").write_text("something else\n")

    def load(read: Read) -> Collection:
        names = read("data").split()
        return Collection({"one": ToolText("one")}, [Query(name, frozenset({name})) for name in names])

    found = Source("own", "a/b", commit, "MIT", load).read([clone])
    assert found is not None
    assert found.queries == [Query("one", frozenset({"one"}))]


def test_a_collection_of_which_no_clone_has_the_commit_is_not_there(clone: Path) -> None:
    def load(read: Read) -> Collection:
        raise AssertionError("there is nothing to load")

    assert Source("own", "a/b", "0" * 40, "MIT", load).read([clone]) is None
