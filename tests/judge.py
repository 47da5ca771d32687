"""The judge of everything a server says on one connection: each message against the schema of the version in force.

The verdict is `mcp_types`', the official types, by method and version (tasks of 2025-11-25 included; the extensions of
tasks and of skills have no official types, and are judged by their text), with what no schema says added: answers come
once and to what was asked, progress to a token in flight, and questions only to a client that can take them. Feed it
both directions in the order of the wire; it raises `Violation` at the first message that should not be.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, Literal, Self

import mcp_types
from mcp_types import jsonrpc, methods
from pydantic import BaseModel, Field, ValidationError, model_validator

from mcproxy.protocol.eras import LATEST, META_VERSION, V2025_11_25
from mcproxy.protocol.methods import INPUT_CAPABILITIES, PROGRESS
from mcproxy.protocol.tasks import TASK_NOTIFICATION, TASK_STATUS

Json = dict[str, Any]


class Violation(AssertionError):
    """What was said, and what is wrong with it."""

    def __init__(self, message: object, fault: object) -> None:
        super().__init__(f"{fault}\nin {json.dumps(message)[:2000]}")


class Judge:
    """Knows what was asked on one connection, and in which version.

    Results of methods in `unjudged` may have any shape: a server behind a gateway says things of its own, and they
    are to come through all the same.
    """

    def __init__(self, unjudged: Collection[str] = ()) -> None:
        self._unjudged = unjudged
        self.version: str | None = None
        self.verdicts = 0
        self._capabilities: Json = {}
        self._asked: dict[int | str, Json] = {}
        self._questions: set[int | str] = set()

    def sent(self, message: Json | list[Json]) -> None:
        """Notes what the client said; clients are not judged."""
        for one in message if isinstance(message, list) else [message]:
            if "method" in one and "id" in one:
                self._note_request(one)

    def received(self, message: Json | list[Json]) -> None:
        """Judges what the server said. Raises Violation."""
        for one in message if isinstance(message, list) else [message]:
            self._judge(one)
            self.verdicts += 1

    def _note_request(self, request: Json) -> None:
        params = request.get("params") or {}
        self._asked[request["id"]] = request
        if request["method"] == "initialize":
            self._capabilities = params["capabilities"]
        self.version = params.get("_meta", {}).get(META_VERSION, self.version)

    def _judge(self, message: Json) -> None:
        try:
            match jsonrpc.jsonrpc_message_adapter.validate_python(message):
                case jsonrpc.JSONRPCResponse(id=id, result=result):
                    self._judge_result(message, id, result)
                case jsonrpc.JSONRPCError(id=id):
                    self._take_question(message, id)
                case jsonrpc.JSONRPCRequest(id=id, method=method, params=params):
                    self._judge_request(message, id, method, params)
                case jsonrpc.JSONRPCNotification(method=method, params=params):
                    self._judge_notification(message, method, params or {})
        except KeyError as error:
            raise Violation(message, f"{error} is not part of {self.version}") from error
        except (ValidationError, ValueError) as error:
            raise Violation(message, f"not valid in {self.version}: {error}") from error

    def _judge_result(self, message: Json, id: int | str, result: Json) -> None:
        request = self._take_question(message, id)
        if request is None:
            return
        if request["method"] == "initialize":
            self.version = result.get("protocolVersion")
        if request["method"] not in self._unjudged:
            _judge_shape(request, self._in_force(request), result)

    def _take_question(self, message: Json, id: int | str | None) -> Json | None:
        if id is None:
            return None
        request = self._asked.pop(id, None)
        if request is None:
            raise Violation(message, f"an answer to {id!r}, which was not asked or is answered already")
        return request

    def _judge_request(self, message: Json, id: int | str, method: str, params: Json | None) -> None:
        methods.parse_server_request(method, self._in_force(), params)
        capability = INPUT_CAPABILITIES.get(method)
        if capability is not None and capability not in self._capabilities:
            raise Violation(message, f"the client did not declare {capability!r}")
        if id in self._questions:
            raise Violation(message, f"the id {id!r} was used before")
        self._questions.add(id)

    def _judge_notification(self, message: Json, method: str, params: Json) -> None:
        if (method, self._in_force()) == (TASK_STATUS, V2025_11_25):
            mcp_types.TaskStatusNotification.model_validate(message)
        elif (method, self._in_force()) == (TASK_NOTIFICATION, LATEST):
            DetailedTask.model_validate(params)
        else:
            methods.parse_server_notification(method, self._in_force(), params)
        if method == PROGRESS and params["progressToken"] not in self._tokens():
            raise Violation(message, f"progress on {params['progressToken']!r}, a token of no request in flight")

    def _tokens(self) -> list[object]:
        return [_meta(request).get("progressToken") for request in self._asked.values()]

    def _in_force(self, request: Json | None = None) -> str:
        version = _meta(request).get(META_VERSION, self.version) if request else self.version
        if not isinstance(version, str):
            raise ValueError("no version was agreed on")  # noqa: TRY004 - the peer's fault, not the caller's
        return version


class ExtensionTask(BaseModel):
    """What every message about a task of the extension says of it (tasks extension, Task)."""

    taskId: str
    status: Literal["working", "input_required", "completed", "failed", "cancelled"]
    createdAt: str
    lastUpdatedAt: str
    ttlMs: int | None
    pollIntervalMs: int | None = None


class DetailedTask(ExtensionTask):
    """What `tasks/get` and `notifications/tasks` say (tasks extension, DetailedTask)."""

    result: Json | None = None
    error: Json | None = None
    inputRequests: Json | None = None

    @model_validator(mode="after")
    def says_what_its_status_promises(self) -> Self:
        promised = {"completed": self.result, "failed": self.error, "input_required": self.inputRequests}
        if promised.get(self.status, {}) is None:
            raise ValueError(f"{self.status}, and says nothing of it")
        if self.result is not None and self.error is not None:
            raise ValueError("both a result and an error")
        return self


_TASKS: Final[Mapping[str, type[mcp_types.Result]]] = {
    "tasks/get": mcp_types.GetTaskResult,
    "tasks/result": mcp_types.CallToolResult,
    "tasks/list": mcp_types.ListTasksResult,
    "tasks/cancel": mcp_types.CancelTaskResult,
}
"""What the official table of methods leaves out: experimental in 2025-11-25, and gone since."""


class SkillFile(BaseModel):
    """A file of a skill (skills extension, Skill Entries)."""

    uri: str
    digest: Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
    size: int


class Frontmatter(BaseModel):
    name: str
    description: str


class Skill(BaseModel):
    """The entry of a skill, in lists and by itself."""

    uri: str
    frontmatter: Frontmatter
    resources: list[SkillFile] | Literal["dynamic"]

    @model_validator(mode="after")
    def lists_itself_under_its_name(self) -> Self:
        if not self.uri.endswith(f"/{self.frontmatter.name}/SKILL.md"):
            raise ValueError(f"{self.uri} is not that of {self.frontmatter.name!r}")
        root = self.uri.removesuffix("SKILL.md")
        files = self.resources if isinstance(self.resources, list) else []
        if files and not any(file.uri == self.uri for file in files):
            raise ValueError("the files lack SKILL.md")
        if not all(file.uri.startswith(root) for file in files):
            raise ValueError(f"a file is not below {root}")
        return self


class ListSkillsResult(BaseModel):
    skills: list[Skill]
    nextCursor: str | None = None


class GetSkillResult(BaseModel):
    skill: Skill


class HintedResult(BaseModel):
    """What results of the stateless era say that may be cached."""

    resultType: Literal["complete"]
    ttlMs: int
    cacheScope: Literal["public", "private"]


_SKILLS: Final[Mapping[str, type[BaseModel]]] = {
    "skills/list": ListSkillsResult,
    "skills/get": GetSkillResult,
    "resources/directory/read": mcp_types.ListResourcesResult,
}


def _judge_shape(request: Json, version: str, result: Json) -> None:
    method = request["method"]
    if version == V2025_11_25 and method in _TASKS:
        _TASKS[method].model_validate(result)
    elif version == V2025_11_25 and "task" in (request.get("params") or {}):
        mcp_types.CreateTaskResult.model_validate(result)
    elif method in _SKILLS:
        _SKILLS[method].model_validate(result)
        if version == LATEST:
            HintedResult.model_validate(result)
    elif version == LATEST and method == "tasks/get":
        DetailedTask.model_validate(result)
    elif version == LATEST and result.get("resultType") == "task":
        ExtensionTask.model_validate(result)
    else:
        methods.validate_server_result(method, version, result)


def _meta(request: Json) -> Mapping[str, Any]:
    meta = (request.get("params") or {}).get("_meta") or {}
    assert isinstance(meta, dict)
    return meta
