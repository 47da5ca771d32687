"""Odd servers over stdio, one small class each: `python odd_servers.py NAME`. No SDK is involved.

A class overrides the part in which its server deviates. All others behave: one tool that echoes, one resource.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any, ClassVar

Json = dict[str, Any]

TOOL: Json = {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}}
BY_NAME: dict[str, type[Server]] = {}


class Server:
    """A server that does everything right. `id` stands in its answers as it came."""

    version: ClassVar[str | None] = "2025-06-18"
    tools: ClassVar[list[Json]] = [TOOL]
    end = b"\n"

    def __init_subclass__(cls) -> None:
        BY_NAME[cls.__name__] = cls

    def run(self) -> None:
        self.begin()
        for line in sys.stdin.buffer:
            message = json.loads(line)
            if "id" in message and "method" in message:
                self.take(message)
        self.stdin_ended()

    def begin(self) -> None:
        """What it does before it reads anything."""

    def stdin_ended(self) -> None:
        """What it does after the end of its input."""

    def take(self, request: Json) -> None:
        self.answer(request)
        if request["method"] == "tools/call":
            self.called()

    def called(self) -> None:
        """What it does after it has answered a call."""

    def answer(self, request: Json) -> None:
        self.write(self.envelope({"id": request["id"], **self.outcome(request["method"], request.get("params") or {})}))

    def envelope(self, answer: Json) -> Any:
        return {"jsonrpc": "2.0", **answer}

    def outcome(self, method: str, params: Json) -> Json:
        result = self.result(method, params)
        return {"error": self.unknown(method)} if result is None else {"result": result}

    def unknown(self, method: str) -> Any:
        return {"code": -32601, "message": f"no {method} here"}

    def result(self, method: str, params: Json) -> Any:
        match method:
            case "initialize":
                return self.initialized(params)
            case "ping":
                return {}
            case "tools/list":
                return {"tools": self.tools}
            case "tools/call":
                return self.call(params)
            case "resources/list":
                return {"resources": [{"uri": "odd:memo", "name": "memo"}]}
            case "resources/read":
                return self.read(params)
        return None

    def initialized(self, params: Json) -> Json:
        return {
            "protocolVersion": self.version,
            "capabilities": {"tools": {}, "resources": {}},
            "serverInfo": {"name": "odd", "version": "1"},
        }

    def call(self, params: Json) -> Any:
        return {"content": [{"type": "text", "text": self.said(params)}]}

    def said(self, params: Json) -> str:
        return "echo: " + str((params.get("arguments") or {}).get("text", ""))

    def read(self, params: Json) -> Any:
        return {"contents": [{"uri": params["uri"], "mimeType": "text/plain", "text": "hello"}]}

    def write(self, message: Any) -> None:
        self.write_bytes(self.encoded(message) + self.end)

    def encoded(self, message: Any) -> bytes:
        return json.dumps(message).encode()

    def write_bytes(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


# What answers say.


class IdsAreTexts(Server):
    def envelope(self, answer: Json) -> Any:
        return super().envelope({**answer, "id": str(answer["id"])})


class IdsAreFloats(Server):
    def envelope(self, answer: Json) -> Any:
        id = answer["id"]
        return super().envelope({**answer, "id": float(id) if isinstance(id, int) else id})


class ErrorsHaveIdNull(Server):
    def envelope(self, answer: Json) -> Any:
        return super().envelope({**answer, "id": None} if "error" in answer else answer)

    def outcome(self, method: str, params: Json) -> Json:
        if method == "tools/call" and "fail" in self.said(params):
            return {"error": {"code": -32000, "message": "the disk is full"}}
        return super().outcome(method, params)


class ErrorsHaveNoId(ErrorsHaveIdNull):
    def envelope(self, answer: Json) -> Any:
        return {key: value for key, value in super().envelope(answer).items() if key != "id" or value is not None}


class ErrorNullBesideResult(Server):
    def envelope(self, answer: Json) -> Any:
        return {"error": None, **super().envelope(answer)}


class ResultNullBesideError(ErrorsHaveIdNull):
    def envelope(self, answer: Json) -> Any:
        return {"jsonrpc": "2.0", "result": None, **answer}


class NoJsonrpc(Server):
    def envelope(self, answer: Json) -> Any:
        return answer


class JsonrpcIsANumber(Server):
    def envelope(self, answer: Json) -> Any:
        return {"jsonrpc": 2.0, **answer}


class AnswersAreLists(Server):
    def envelope(self, answer: Json) -> Any:
        return [super().envelope(answer)]


class Initializing(Server):
    without: ClassVar[tuple[str, ...]] = ()
    changed: ClassVar[Json] = {}

    def initialized(self, params: Json) -> Json:
        members = {**super().initialized(params), **self.changed}
        return {key: value for key, value in members.items() if key not in self.without}


class NoCapabilities(Initializing):
    without = ("capabilities",)


class CapabilitiesNull(Initializing):
    changed: ClassVar[Json] = {"capabilities": None}


class CapabilitiesList(Initializing):
    changed: ClassVar[Json] = {"capabilities": []}


class CapabilityTrue(Initializing):
    changed: ClassVar[Json] = {"capabilities": {"tools": True, "resources": True}}


class CapabilityNull(Initializing):
    changed: ClassVar[Json] = {"capabilities": {"tools": {}, "resources": {}, "prompts": None, "logging": None}}


class NoServerInfo(Initializing):
    without = ("serverInfo",)


class ServerInfoText(Initializing):
    changed: ClassVar[Json] = {"serverInfo": "odd"}


class ServerInfoWithoutVersion(Initializing):
    changed: ClassVar[Json] = {"serverInfo": {"name": "odd"}}


class NoProtocolVersion(Initializing):
    without = ("protocolVersion",)


class InstructionsNull(Initializing):
    changed: ClassVar[Json] = {"instructions": None}


class Calling(Server):
    """Answers calls with `result`, in which `TEXT` stands for what was said."""

    answered: ClassVar[Any] = None

    def call(self, params: Json) -> Any:
        return json.loads(json.dumps(self.answered).replace("TEXT", self.said(params)))


class ContentNull(Calling):
    answered: ClassVar[Any] = {"content": None, "structuredContent": {"said": "TEXT"}}


class NoContent(Calling):
    answered: ClassVar[Any] = {"structuredContent": {"said": "TEXT"}}


class ContentIsText(Calling):
    answered: ClassVar[Any] = {"content": "TEXT"}


class ContentIsABlock(Calling):
    answered: ClassVar[Any] = {"content": {"type": "text", "text": "TEXT"}}


class ContentIsAListOfTexts(Calling):
    answered: ClassVar[Any] = {"content": ["TEXT", "more"]}


class ToolResult(Calling):
    answered: ClassVar[Any] = {"toolResult": {"said": "TEXT"}}


class ToolResultText(Calling):
    answered: ClassVar[Any] = {"toolResult": "TEXT"}


class ResultIsText(Calling):
    answered: ClassVar[Any] = "TEXT"


class ResultIsContentList(Calling):
    answered: ClassVar[Any] = [{"type": "text", "text": "TEXT"}]


class PlainObject(Calling):
    answered: ClassVar[Any] = {"said": "TEXT"}


class StructuredArray(Calling):
    answered: ClassVar[Any] = {"content": [{"type": "text", "text": "TEXT"}], "structuredContent": ["TEXT"]}


class StructuredArrayAlone(Calling):
    answered: ClassVar[Any] = {"structuredContent": ["TEXT"]}


class StructuredNull(Calling):
    answered: ClassVar[Any] = {"content": [{"type": "text", "text": "TEXT"}], "structuredContent": None}


class StructuredText(Calling):
    answered: ClassVar[Any] = {"content": [], "structuredContent": "TEXT"}


class MetaNull(Calling):
    answered: ClassVar[Any] = {
        "content": [{"type": "text", "text": "TEXT", "annotations": None, "_meta": None}],
        "_meta": None,
    }


class ContradictsOutputSchema(Calling):
    tools: ClassVar[list[Json]] = [
        {**TOOL, "outputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}
    ]
    answered: ClassVar[Any] = {"content": [{"type": "text", "text": "TEXT"}], "structuredContent": {"n": "many"}}


class OutputSchemaWithoutStructure(ContradictsOutputSchema):
    answered: ClassVar[Any] = {"content": [{"type": "text", "text": "TEXT"}]}


class UnknownBlocks(Calling):
    answered: ClassVar[Any] = {
        "content": [{"type": "json", "json": {"said": "TEXT"}}, {"type": "text", "text": "more"}]
    }


class BlockWithoutType(Calling):
    answered: ClassVar[Any] = {"content": [{"text": "TEXT"}]}


class ErrorBlock(Calling):
    answered: ClassVar[Any] = {"content": [{"type": "error", "error": "TEXT"}]}


class TextIsAnObject(Calling):
    answered: ClassVar[Any] = {"content": [{"type": "text", "text": {"said": "TEXT"}}]}


class TextIsANumber(Calling):
    answered: ClassVar[Any] = {
        "content": [{"type": "text", "text": 42}, {"type": "text", "text": None}, {"type": "text"}]
    }


class ImageWithoutType(Calling):
    answered: ClassVar[Any] = {"content": [{"type": "image", "data": "AAAA"}, {"type": "text", "text": "TEXT"}]}


class IsErrorText(Calling):
    answered: ClassVar[Any] = {"content": [{"type": "text", "text": "TEXT"}], "isError": "true"}


class IsErrorNull(Calling):
    answered: ClassVar[Any] = {"content": [{"type": "text", "text": "TEXT"}], "isError": None}


class ContentsIsOne(Server):
    def read(self, params: Json) -> Any:
        return {"contents": {"uri": params["uri"], "text": "hello"}}


class ContentsWithoutUri(Server):
    def read(self, params: Json) -> Any:
        return {"contents": [{"text": "hello", "mimeType": None}]}


class ContentsIsText(Server):
    def read(self, params: Json) -> Any:
        return {"contents": "hello"}


class ContentsIsJson(Server):
    def read(self, params: Json) -> Any:
        return {"contents": [{"uri": params["uri"], "mimeType": "application/json", "text": {"hello": 1}}]}


def with_schema(schema: Any) -> list[Json]:
    return [{"name": "echo", "inputSchema": schema}]


class NoInputSchema(Server):
    tools: ClassVar[list[Json]] = [{"name": "echo"}]


class InputSchemaNull(Server):
    tools: ClassVar[list[Json]] = with_schema(None)


class InputSchemaTrue(Server):
    tools: ClassVar[list[Json]] = with_schema(True)


class InputSchemaEmpty(Server):
    tools: ClassVar[list[Json]] = with_schema({})


class InputSchemaList(Server):
    tools: ClassVar[list[Json]] = with_schema([])


class SnakeCase(Server):
    tools: ClassVar[list[Json]] = [{"name": "echo", "input_schema": TOOL["inputSchema"]}]


class Capitals(Server):
    tools: ClassVar[list[Json]] = with_schema(
        {
            "type": "OBJECT",
            "properties": {"text": {"type": "STRING"}, "many": {"type": "ARRAY", "items": {"type": "INTEGER"}}},
        }
    )


class OddMembers(Server):
    tools: ClassVar[list[Json]] = [
        {
            **TOOL,
            "title": None,
            "description": None,
            "outputSchema": None,
            "annotations": None,
            "inputSchema": {"type": "object", "properties": None, "required": None},
        }
    ]


class PropertiesList(Server):
    tools: ClassVar[list[Json]] = with_schema({"type": "object", "properties": [], "required": {}})


class RequiredTrue(Server):
    tools: ClassVar[list[Json]] = with_schema(
        {"type": "object", "properties": {"text": {"type": "string", "required": True}}, "required": True}
    )


class DanglingRef(Server):
    tools: ClassVar[list[Json]] = [
        *({**TOOL, "name": f"echo{number}"} for number in range(8)),
        TOOL,
        {"name": "bad", "inputSchema": {"type": "object", "properties": {"x": {"$ref": "#/$defs/Nowhere"}}}},
    ]


class BadTools(Server):
    tools: ClassVar[list[Json]] = [None, 7, "x", [], {}, {"name": 3}, {"name": ""}, {"name": None}, TOOL]  # type: ignore[list-item]


class OddNames(Server):
    tools: ClassVar[list[Json]] = [
        {**TOOL, "name": name}
        for name in ("echo", "files.read/all", "Get the weather", "提取数据", "n" * 128, "é" * 300, "a\nb")
    ]


class ListedTwice(Server):
    tools: ClassVar[list[Json]] = [TOOL, TOOL, {**TOOL, "description": "another"}]


class Cursor(Server):
    cursor: ClassVar[Any] = None

    def result(self, method: str, params: Json) -> Any:
        found = super().result(method, params)
        return {**found, "nextCursor": self.cursor} if method.endswith("/list") and found is not None else found


class CursorNull(Cursor):
    pass


class CursorEmpty(Cursor):
    cursor = ""


class CursorSame(Cursor):
    cursor = "again"


class CursorNumber(Cursor):
    cursor = 0


class CursorFalse(Cursor):
    cursor = False


class ListIsBare(Server):
    def result(self, method: str, params: Json) -> Any:
        return self.tools if method == "tools/list" else super().result(method, params)


class NoPrompts(Server):
    def unknown(self, method: str) -> Any:
        return {"code": -32603, "message": "Internal error"}


class Failing(Server):
    """Answers a call with `error`."""

    error: ClassVar[Any] = None

    def outcome(self, method: str, params: Json) -> Json:
        return {"error": self.error} if method == "tools/call" else super().outcome(method, params)


class CodeFloat(Failing):
    error: ClassVar[Any] = {"code": -32000.0, "message": "the disk is full"}


class CodeText(Failing):
    error: ClassVar[Any] = {"code": "-32000", "message": "the disk is full"}


class CodeWord(Failing):
    error: ClassVar[Any] = {"code": "EDISK", "message": "the disk is full"}


class NoCode(Failing):
    error: ClassVar[Any] = {"message": "the disk is full"}


class ErrorText(Failing):
    error: ClassVar[Any] = "the disk is full"


class ErrorWithoutMessage(Failing):
    error: ClassVar[Any] = {"code": -32000, "data": "the disk is full"}


class MessageNull(Failing):
    error: ClassVar[Any] = {"code": -32000, "message": None, "data": {"why": "the disk is full"}}


class CodeHuge(Failing):
    error: ClassVar[Any] = {"code": 1e300, "message": "the disk is full"}


class NullDataAndHalfPair(Failing):
    error: ClassVar[Any] = {"code": -32000, "message": "the disk is full \ud83d", "data": None}


class HalfPair(Server):
    def call(self, params: Json) -> Any:
        return {"content": [{"type": "text", "text": self.said(params) + " \ud83d"}]}

    def read(self, params: Json) -> Any:
        return {"contents": [{"uri": params["uri"], "text": "hello \udc00 there"}]}


class HalfPairInList(Server):
    tools: ClassVar[list[Json]] = [{**TOOL, "description": "bad \ud83d here"}, {**TOOL, "name": "other"}]


class Numbers(Server):
    def call(self, params: Json) -> Any:
        odd = [float("nan"), float("inf"), float("-inf"), 12345678901234567890123]
        return {**super().call(params), "structuredContent": {"odd": odd, "NaN": "NaN, Infinity"}}


class NumbersInList(Server):
    tools: ClassVar[list[Json]] = with_schema(
        {"type": "object", "properties": {"x": {"type": "number", "default": float("nan"), "maximum": float("inf")}}}
    )


class Latin1(Server):
    tools: ClassVar[list[Json]] = [{**TOOL, "description": "größer"}]

    def call(self, params: Json) -> Any:
        return {"content": [{"type": "text", "text": self.said(params) + " größer"}]}

    def encoded(self, message: Any) -> bytes:
        return json.dumps(message, ensure_ascii=False).encode("latin-1")


class Latin1Error(Latin1, Failing):
    error: ClassVar[Any] = {"code": -32000, "message": "the disk is full: größer"}


class ControlCharacters(Server):
    def encoded(self, message: Any) -> bytes:
        return json.dumps(message).replace("echo: ", "echo: \t\x1b[1m").encode()


# Servers over stdio.


class Banner(Server):
    def begin(self) -> None:
        self.write_bytes("Starting\nGrüße\n[info] {ready}\n".encode("latin-1"))


class JsonLogLines(Server):
    def answer(self, request: Json) -> None:
        self.write_bytes(b'{"level":"info","id":1,"msg":"working"}\n["a"]\n[]\n{}\n{"broken\n')
        super().answer(request)


class Prompt(Server):
    def begin(self) -> None:
        self.write_bytes(b"Server ready> ")


class PromptEachTime(Server):
    def write_bytes(self, data: bytes) -> None:
        super().write_bytes(b">>> " + data)


class Coloured(Server):
    def write_bytes(self, data: bytes) -> None:
        super().write_bytes(b"\x1b[32mINFO\x1b[0m working {x}\n" + data[:-1] + b"\x1b[0m\n")


class ColouredBefore(Server):
    def write_bytes(self, data: bytes) -> None:
        super().write_bytes(b"\x1b[2K\x1b[1;32m" + data[:-1] + b"\x1b[0m\n")


class LinesEndInCrlf(Server):
    end = b"\r\n"


class ByteOrderMark(Server):
    def begin(self) -> None:
        self.write_bytes(b"\xef\xbb\xbf")


class NulBytes(Server):
    end = b"\n\0"


class ManyLines(Server):
    def encoded(self, message: Any) -> bytes:
        return json.dumps(message, indent=2).encode()


class AsLsp(Server):
    def write(self, message: Any) -> None:
        data = json.dumps(message).encode()
        self.write_bytes(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))


class LongLogLines(Server):
    def answer(self, request: Json) -> None:
        self.write_bytes(b"x" * 500_000 + b"\n")
        super().answer(request)
        self.write_bytes(b"{" + b"y" * 500_000 + b"\n")


class MuchStderr(Server):
    def answer(self, request: Json) -> None:
        sys.stderr.write("a short line\n" * 800_000)
        sys.stderr.flush()
        super().answer(request)


class DiesUnlessInitialize(Server):
    first = True

    def take(self, request: Json) -> None:
        if self.first and request["method"] != "initialize":
            sys.exit(1)
        self.first = False
        super().take(request)


class SilentOnUnknown(Server):
    def answer(self, request: Json) -> None:
        if self.result(request["method"], request.get("params") or {}) is not None:
            super().answer(request)


class SlowStart(Server):
    def begin(self) -> None:
        for second in range(int(os.environ.get("ODD_SECONDS", "20"))):
            sys.stderr.write(f"downloading {second}\n")
            sys.stderr.flush()
            time.sleep(1)


class ExitsAfterCall(Server):
    def called(self) -> None:
        sys.exit(0)


class GoesOn(Server):
    def stdin_ended(self) -> None:
        time.sleep(10_000)


class ExitsAtOnce(Server):
    def begin(self) -> None:
        sys.stderr.write("FATAL: FIELD_TOKEN is not set\n")
        sys.exit(3)


class LargeAnswers(Server):
    def said(self, params: Json) -> str:
        return super().said(params) + "z" * 5_000_000


class ClosesStdout(Server):
    def called(self) -> None:
        os.close(1)
        time.sleep(10_000)


class HelperHoldsPipes(Server):
    session = False

    def begin(self) -> None:
        subprocess.Popen(["sleep", "10000"], start_new_session=self.session)

    def called(self) -> None:
        os._exit(0)


class HelperInItsOwnSession(HelperHoldsPipes):
    session = True

    def called(self) -> None:
        pass


class BehindAShell(Server):
    def run(self) -> None:
        if os.environ.get("ODD_INNER"):
            super().run()
        else:
            command = f"{sys.executable} {__file__} {type(self).__name__}; exit $?"
            sys.exit(subprocess.call(["sh", "-c", command], env={**os.environ, "ODD_INNER": "1"}))


class RefusesVersion(Server):
    data: ClassVar[Any] = {"expected": "2025-03-26"}
    message = "Unsupported protocol version"
    speaks = "2025-03-26"
    code = -32602

    def outcome(self, method: str, params: Json) -> Json:
        if method == "initialize" and params["protocolVersion"] != self.speaks:
            error: Json = {"code": self.code, "message": self.message}
            return {"error": error if self.data is None else {**error, "data": self.data}}
        return super().outcome(method, params)

    def initialized(self, params: Json) -> Json:
        return {**super().initialized(params), "protocolVersion": self.speaks}


class RefusesVersionWithList(RefusesVersion):
    data: ClassVar[Any] = {"supported": ["2024-11-05"], "requested": "x"}
    speaks = "2024-11-05"


class RefusesVersionWithSupportedVersions(RefusesVersion):
    data: ClassVar[Any] = {"supportedVersions": ["2025-03-26"]}
    code = -32000


class RefusesVersionInTheMessage(RefusesVersion):
    data = None
    message = "Unsupported protocol version (supported versions: 2025-03-26, 2024-11-05)"


class RefusesVersionWithoutList(RefusesVersion):
    data = None
    speaks = "2025-06-18"


class RefusesVersionAsInvalidRequest(RefusesVersion):
    data = None
    message = "Invalid Request"
    code = -32600
    speaks = "2024-11-05"


if __name__ == "__main__":
    BY_NAME[sys.argv[1]]().run()
