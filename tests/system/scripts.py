"""What the clients of the differential test do with each server, and how each server is started.

A script must give the same answers each time it is played to a fresh server: no clock, no chance, and every path
below the folder that `prepare` lays out anew. It names nothing that the server does not list: that the gateway answers.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.system.running import ODD_SERVER, SERVERS, Json, npm_server

ANSWERS: Json = {
    "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": "fine"}, "model": "fixed"},
    "elicitation/create": {"action": "accept", "content": {"name": "Ada", "age": 36}},
    "roots/list": {"roots": [{"uri": "file:///fixed", "name": "fixed"}]},
}


@dataclass(frozen=True)
class Script:
    """`command` and `steps` are given the folder that they may use."""

    command: Callable[[Path], list[str]]
    steps: Callable[[Path], list[Json]]
    prepare: Callable[[Path], object] = lambda folder: None
    environment: Callable[[Path], dict[str, str]] = lambda folder: {}
    npm: bool = False

    def upstream(self, folder: Path) -> Json:
        command, *arguments = self.command(folder)
        return {"command": command, "args": arguments, "env": self.environment(folder)}


def call(tool: str, **arguments: object) -> Json:
    return {"do": "tools/call", "params": {"name": tool, "arguments": arguments}}


def read(uri: str) -> Json:
    return {"do": "resources/read", "params": {"uri": uri}}


def lists(*kinds: str) -> list[Json]:
    return [{"do": f"{kind}/list"} for kind in kinds]


def complete(ref: Json, name: str, value: str, **known: str) -> Json:
    params = {"ref": ref, "argument": {"name": name, "value": value}}
    return {"do": "completion/complete", "params": {**params, **({"context": {"arguments": known}} if known else {})}}


def get_prompt(name: str, **arguments: str) -> Json:
    return {"do": "prompts/get", "params": {"name": name, "arguments": arguments}}


def _odd(_: Path) -> list[Json]:
    memo = {"uri": "odd:memo"}
    return [
        *lists("tools", "resources", "resources/templates", "prompts"),
        {"do": "ping"},
        *(call(tool, text="x") for tool in ("echo", "links", "fail", "refuse", "need_url", "large")),
        *(call(tool) for tool in ("sample", "form", "visit", "roots", "report", "log")),
        *(read(uri) for uri in ("odd:memo", "file:///odd/blob.bin", "ui://odd/view", "odd:nothing")),
        get_prompt("greet", who="Ada"),
        complete({"type": "ref/prompt", "name": "greet"}, "who", "A", other="x"),
        complete({"type": "ref/resource", "uri": "odd://{+path}/0{?query,page}"}, "path", "a"),
        {"do": "resources/subscribe", "params": memo},
        call("watched"),
        call("touch", uri="odd:memo"),
        {"do": "await", "method": "notifications/resources/updated"},
        {"do": "resources/unsubscribe", "params": memo},
        call("watched"),
        {"do": "cancel", "params": {"name": "wait"}},
        call("given_up"),
        call("grow"),
        {"do": "await", "method": "notifications/tools/list_changed"},
        *lists("tools"),
        {"do": "logging/setLevel", "params": {"level": "warning"}},
    ]


def _everything(_: Path) -> list[Json]:
    prompt = {"type": "ref/prompt", "name": "completable-prompt"}
    return [
        *lists("tools", "resources", "resources/templates", "prompts"),
        call("echo", message="hello ✓"),
        call("echo"),
        call("get-sum", a=1, b=2.5),
        call("get-tiny-image"),
        call("get-annotated-message", messageType="error", includeImage=True),
        call("get-resource-links", count=2),
        call("get-structured-content", location="Chicago"),
        {**call("trigger-long-running-operation", duration=0.2, steps=2), "quiet": True},
        call("trigger-sampling-request", prompt="hello", maxTokens=10),
        call("trigger-elicitation-request"),
        {
            "do": "cancel",
            "params": {"name": "trigger-long-running-operation", "arguments": {"duration": 2, "steps": 20}},
        },
        read("demo://resource/static/document/features.md"),
        read("demo://resource/nothing"),
        get_prompt("simple-prompt"),
        get_prompt("args-prompt", city="Paris"),
        complete(prompt, "department", "E"),
        complete(prompt, "name", "", department="Engineering"),
        {"do": "resources/subscribe", "params": {"uri": "demo://resource/dynamic/text/1"}},
        {"do": "resources/unsubscribe", "params": {"uri": "demo://resource/dynamic/text/1"}},
    ]


def _filesystem(folder: Path) -> list[Json]:
    return [
        *lists("tools"),
        call("list_allowed_directories"),
        call("read_text_file", path=str(folder / "a.txt")),
        call("read_text_file", path="/etc/hostname"),
        call("write_file", path=str(folder / "new.txt"), content="ä\r\n\u2028"),
        call("edit_file", path=str(folder / "a.txt"), edits=[{"oldText": "one", "newText": "two"}]),
        call("list_directory", path=str(folder)),
        call("search_files", path=str(folder), pattern="*.txt"),
        call("directory_tree", path=str(folder)),
    ]


def _memory(_: Path) -> list[Json]:
    ada = {"name": "Ada", "entityType": "person", "observations": ["writes ✓"]}
    return [
        *lists("tools", "resources", "resources/templates"),
        call("create_entities", entities=[ada, {"name": "Engine", "entityType": "thing", "observations": []}]),
        call("create_relations", relations=[{"from": "Ada", "to": "Engine", "relationType": "programs"}]),
        call("search_nodes", query="wri"),
        call("open_nodes", names=["Ada", "Nobody"]),
        read("memory://knowledge-graph"),
        call("delete_entities", entityNames=["Engine"]),
        call("read_graph"),
    ]


def _time(_: Path) -> list[Json]:
    zones = {"source_timezone": "Asia/Tokyo", "target_timezone": "Asia/Kolkata"}
    return [
        *lists("tools"),
        call("convert_time", time="12:30", **zones),
        call("convert_time", time="noon", **zones),
        call("get_current_time", timezone="Nowhere/Else"),
    ]


def _git(folder: Path) -> list[Json]:
    repository = str(folder)
    return [
        *lists("tools"),
        call("git_status", repo_path=repository),
        call("git_diff_unstaged", repo_path=repository),
        call("git_add", repo_path=repository, files=["a.txt"]),
        call("git_diff_staged", repo_path=repository),
        call("git_log", repo_path=repository, max_count=1),
        call("git_branch", repo_path=repository, branch_type="local"),
        call("git_status", repo_path="/nowhere"),
    ]


def _lay_out_files(folder: Path) -> None:
    (folder / "a.txt").write_text("one\n")
    (folder / "below").mkdir()
    (folder / "below" / "b.txt").write_text("b\n")


def _lay_out_repository(folder: Path) -> None:
    who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER") for what, value in _NOBODY}
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", **who}
    (folder / "a.txt").write_text("one\n")
    for arguments in (["init", "-q", "-b", "main"], ["add", "a.txt"], ["commit", "-q", "-m", "First"]):
        subprocess.run(["git", *arguments], cwd=folder, env=environment, check=True)
    (folder / "a.txt").write_text("two\n")


_NOBODY: Iterable[tuple[str, str]] = (("NAME", "Ada"), ("EMAIL", "a@example.com"), ("DATE", "2025-01-01T00:00:00Z"))

SCRIPTS: dict[str, Script] = {
    "odd": Script(lambda _: ODD_SERVER, _odd),
    "everything": Script(lambda _: npm_server("everything"), _everything, npm=True),
    "filesystem": Script(lambda f: npm_server("filesystem", str(f)), _filesystem, _lay_out_files, npm=True),
    "memory": Script(
        lambda _: npm_server("memory"),
        _memory,
        environment=lambda folder: {"MEMORY_FILE_PATH": str(folder / "memory.jsonl")},
        npm=True,
    ),
    "time": Script(lambda _: [str(SERVERS / "mcp-server-time"), "--local-timezone", "UTC"], _time),
    "git": Script(lambda f: [str(SERVERS / "mcp-server-git"), "-r", str(f)], _git, _lay_out_repository),
}
