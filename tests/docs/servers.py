"""An MCP server of each era over HTTP, of the standard library alone: what stands behind a gateway that is traced."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

Message = dict[str, Any]

CAPABILITIES: Final = {"tools": {}, "resources": {"subscribe": True}}
TOOLS: Final = [{"name": name, "inputSchema": {"type": "object"}} for name in ("echo", "ask")]
RESOURCE: Final = {"uri": "memo://one", "name": "one"}
FORM: Final = {
    "message": "Which colour?",
    "requestedSchema": {"type": "object", "properties": {"colour": {"type": "string"}}},
}
ELICITATION: Final = "elicited"


class McpServer(ThreadingHTTPServer):
    """Listens on a free port of loopback; `stateless` says of which era it is."""

    daemon_threads = True

    def __init__(self, *, stateless: bool) -> None:
        super().__init__(("127.0.0.1", 0), McpHandler)
        self.stateless = stateless
        self.updates: queue.Queue[Message] = queue.Queue()
        """What the event stream of a handshake session still has to carry."""
        self.answers: queue.Queue[Message] = queue.Queue()
        """What clients answered to elicitations."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """A gateway that stops hangs up on what is still being said: no failure."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/mcp"

    def update(self) -> None:
        """Tells subscribers that the resource changed."""
        self.updates.put({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": RESOURCE})


class McpHandler(BaseHTTPRequestHandler):
    """One connection. Reads each request whole; answers it as JSON, or as an event stream where it asks first."""

    protocol_version = "HTTP/1.1"
    server: McpServer

    def log_message(self, format: str, *arguments: object) -> None:
        """Keeps quiet."""

    def do_GET(self) -> None:
        if self.server.stateless:
            self.send_error(405)
            return
        self._begin_stream()
        while True:
            self._event(self.server.updates.get())

    def do_DELETE(self) -> None:
        self._accept()

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match message:
            case {"id": str(id), "result": result} if id == ELICITATION:
                self.server.answers.put(result)
                self._accept()
            case {"id": _, "method": str(method)}:
                self._answer(message, method)
            case _:
                self._accept()

    def _answer(self, request: Message, method: str) -> None:
        match method:
            case "initialize" if not self.server.stateless:
                info = {"name": "handshake", "version": "1"}
                body = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": info}
                self._json(request, body, {"Mcp-Session-Id": "only"})
            case "server/discover" if self.server.stateless:
                self._json(request, {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES})
            case "tools/list":
                self._json(request, {"tools": TOOLS})
            case "resources/list":
                self._json(request, {"resources": [RESOURCE]})
            case "resources/templates/list":
                self._json(request, {"resourceTemplates": []})
            case "resources/subscribe":
                self._json(request, {})
            case "tools/call" if request["params"]["name"] == "ask":
                self._ask(request)
            case "tools/call":
                self._json(request, {"content": [{"type": "text", "text": "done"}]})
            case _:
                self._send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "no"}}, {})

    def _ask(self, request: Message) -> None:
        self._begin_stream()
        question = {"jsonrpc": "2.0", "id": ELICITATION, "method": "elicitation/create", "params": FORM}
        self._event(question)
        self.server.answers.get()
        result = {"content": [{"type": "text", "text": "thanks"}]}
        self._event({"jsonrpc": "2.0", "id": request["id"], "result": result})
        self.wfile.write(b"0\r\n\r\n")

    def _json(self, request: Message, body: Message, fields: dict[str, str] | None = None) -> None:
        whole = {"resultType": "complete", **body} if self.server.stateless else body
        self._send({"jsonrpc": "2.0", "id": request["id"], "result": whole}, fields or {})

    def _send(self, message: Message, fields: dict[str, str]) -> None:
        body = json.dumps(message).encode()
        self.send_response(200)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **fields}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _accept(self) -> None:
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, message: Message) -> None:
        data = f"data: {json.dumps(message)}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()
