"""The upstream of the conformance runs: a server on the official SDK that offers what the suite's scenarios want.

`--era` narrows it to one generation for the crossed cells: `legacy` refuses requests of 2026-07-28 as a server
that never heard of them does, `modern` refuses `initialize`.
"""

from __future__ import annotations

import argparse
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    Completion,
    CreateMessageResult,
    ElicitRequest,
    ElicitResult,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequest,
    InputRequiredResult,
    JSONRPCMessage,
    ListRootsRequest,
    ListRootsResult,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from pydantic import Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.fakes.servers.asking import ask, form, sampling

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABh6FO1AAAAABJRU5ErkJggg=="
SILENCE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="

server = MCPServer("mcproxy-conformance-upstream", version="1.0.0", log_level="ERROR")

Era = Literal["both", "legacy", "modern"]


def filled(answer: object, field: str) -> str:
    """One field of an accepted form, or `?`."""
    return str(answer.content.get(field, "?")) if isinstance(answer, ElicitResult) and answer.content else "?"


def embedded(uri: str, mime_type: str, text: str) -> EmbeddedResource:
    resource = TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return EmbeddedResource(type="resource", resource=resource)


# Content.


@server.tool(name="test_simple_text")
def simple_text() -> str:
    """Returns one text block."""
    return "This is a simple text response for testing."


@server.tool(name="test_image_content")
def image_content() -> list[ImageContent]:
    """Returns one image block."""
    return [ImageContent(type="image", data=PIXEL, mime_type="image/png")]


@server.tool(name="test_audio_content")
def audio_content() -> list[AudioContent]:
    """Returns one audio block."""
    return [AudioContent(type="audio", data=SILENCE, mime_type="audio/wav")]


@server.tool(name="test_embedded_resource")
def embedded_resource() -> list[EmbeddedResource]:
    """Returns one embedded resource."""
    return [embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]


@server.tool(name="test_multiple_content_types")
def multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
    """Returns text, an image and an embedded resource."""
    return [
        TextContent(type="text", text="Multiple content types test:"),
        ImageContent(type="image", data=PIXEL, mime_type="image/png"),
        embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ]


@server.tool(name="test_error_handling")
def error_handling() -> str:
    """Fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


# What happens during a call.


@server.tool(name="test_tool_with_logging")
async def tool_with_logging(ctx: Context[Any, Any]) -> str:
    """Logs three lines on its way."""
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.info(line)
    return "logged"


@server.tool(name="test_logging_tool")
async def logging_tool(ctx: Context[Any, Any]) -> str:
    """Logs one line."""
    await ctx.info("a line")
    return "logged"


@server.tool(name="test_tool_with_progress")
async def tool_with_progress(ctx: Context[Any, Any]) -> str:
    """Reports progress three times."""
    for done in (0, 50, 100):
        await ctx.report_progress(progress=done, total=100, message=f"Completed step {done} of 100")
    return "done"


@server.tool(name="test_reconnection")
async def reconnection(ctx: Context[Any, Any]) -> str:
    """Closes its stream in the middle of the call; the result waits for the client to come back."""
    await ctx.close_sse_stream()
    return "Reconnection test completed"


# Asking the client.


@server.tool(name="test_sampling")
async def ask_for_sampling(prompt: str, ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Asks the client's model."""
    answers = await ask(ctx, {"sample": sampling(prompt)})
    if isinstance(answers, InputRequiredResult):
        return answers
    reply = answers["sample"]
    content = reply.content if isinstance(reply, CreateMessageResult) else None
    return f"LLM response: {content.text if isinstance(content, TextContent) else '?'}"


async def _elicit(ctx: Context[Any, Any], request: ElicitRequest, label: str) -> str | InputRequiredResult:
    answers = await ask(ctx, {"form": request})
    if isinstance(answers, InputRequiredResult):
        return answers
    reply = answers["form"]
    return f"{label}: action={reply.action}, content={json.dumps(reply.content or {})}"


@server.tool(name="test_elicitation")
async def ask_by_elicitation(message: str, ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Asks the user for one field."""
    return await _elicit(ctx, form(message, response={"type": "string", "description": "Response"}), "User response")


@server.tool(name="test_elicitation_sep1034_defaults")
async def elicitation_defaults(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Asks with a default in every kind of field."""
    request = form(
        "Please review the defaults",
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    )
    return await _elicit(ctx, request, "Elicitation completed")


@server.tool(name="test_elicitation_sep1330_enums")
async def elicitation_enums(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Asks with every kind of enum."""
    options = ["option1", "option2", "option3"]
    titled = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
    request = form(
        "Please choose",
        untitledSingle={"type": "string", "enum": options},
        titledSingle={"type": "string", "oneOf": titled},
        legacyEnum={"type": "string", "enum": ["opt1", "opt2"], "enumNames": ["Option One", "Option Two"]},
        untitledMulti={"type": "array", "items": {"type": "string", "enum": options}},
        titledMulti={"type": "array", "items": {"anyOf": titled}},
    )
    return await _elicit(ctx, request, "Elicitation completed")


@server.tool(name="test_missing_capability")
async def missing_capability(ctx: Context[Any, Any]) -> str:
    """Refuses clients that did not declare sampling."""
    declared = ctx.client_capabilities
    if declared is None or declared.sampling is None:
        required: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(code=MISSING_REQUIRED_CLIENT_CAPABILITY, message="sampling is required", data=required)
    return "sampling is declared"


@server.tool(name="test_streaming_elicitation")
async def streaming_elicitation(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Reports progress, then asks."""
    await ctx.report_progress(progress=1, total=2)
    return await _elicit(ctx, form("Go on?", go={"type": "boolean"}), "answered")


# Multi round-trip requests.


@server.tool(name="test_input_required_result_elicitation")
async def input_elicitation(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Asks for a name."""
    answers = await ask(ctx, {"user_name": form("What is your name?", name={"type": "string"})})
    if isinstance(answers, InputRequiredResult):
        return answers
    return f"Hello, {filled(answers['user_name'], 'name')}!"


@server.tool(name="test_input_required_result_sampling")
async def input_sampling(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Asks the client's model for a capital."""
    answers = await ask(ctx, {"capital_question": sampling("What is the capital of France?")})
    if isinstance(answers, InputRequiredResult):
        return answers
    reply = answers["capital_question"]
    content = reply.content if isinstance(reply, CreateMessageResult) else None
    return f"The model says: {content.text if isinstance(content, TextContent) else '?'}"


@server.tool(name="test_input_required_result_list_roots")
async def input_roots(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Asks for the client's roots."""
    answers = await ask(ctx, {"client_roots": ListRootsRequest()})
    if isinstance(answers, InputRequiredResult):
        return answers
    reply = answers["client_roots"]
    return f"The client has {len(reply.roots) if isinstance(reply, ListRootsResult) else 0} roots."


@server.tool(name="test_input_required_result_request_state")
async def input_state(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Asks for a confirmation and expects its state back."""
    state = "state-of-the-confirmation"
    answers = await ask(ctx, {"confirm": form("Please confirm", ok={"type": "boolean"})}, state)
    if isinstance(answers, InputRequiredResult):
        return answers
    modern = (ctx.protocol_version or "") >= "2026-07-28"
    return "state-ok" if not modern or ctx.request_state == state else "state-lost"


@server.tool(name="test_input_required_result_multiple_inputs")
async def input_several(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Asks for three things at once."""
    requests: dict[str, InputRequest] = {
        "user_name": form("What is your name?", name={"type": "string"}),
        "greeting": sampling("Generate a greeting"),
        "client_roots": ListRootsRequest(),
    }
    answers = await ask(ctx, requests, "three-at-once")
    return answers if isinstance(answers, InputRequiredResult) else "All three came."


@server.tool(name="test_input_required_result_multi_round")
async def input_rounds(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Asks twice, one answer building on the other."""
    known: dict[str, str] = json.loads(ctx.request_state) if ctx.request_state else {}
    if "name" not in known:
        answers = await ask(ctx, {"step1": form("Step 1: What is your name?", name={"type": "string"})}, "{}")
        if isinstance(answers, InputRequiredResult):
            return answers
        known = {"name": filled(answers["step1"], "name")}
    color = form("Step 2: What is your favorite color?", color={"type": "string"})
    answers = await ask(ctx, {"step2": color}, json.dumps(known))
    if isinstance(answers, InputRequiredResult):
        return answers
    return f"{known['name']} likes {filled(answers['step2'], 'color')}."


@server.tool(name="test_input_required_result_tampered_state")
async def input_tampered(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Asks with a state that the SDK seals: a tampered one never comes here."""
    answers = await ask(ctx, {"confirm": form("Please confirm", ok={"type": "boolean"})}, "sealed")
    return answers if isinstance(answers, InputRequiredResult) else "state-ok"


@server.tool(name="test_input_required_result_capabilities")
async def input_by_capability(ctx: Context[Any, Any]) -> str | InputRequiredResult:
    """Asks only for what the client declared."""
    declared = ctx.client_capabilities
    requests: dict[str, InputRequest] = {}
    if declared is None or declared.sampling is not None:
        requests["sample"] = sampling("Say hello")
    if declared is None or declared.elicitation is not None:
        requests["ask"] = form("What is your name?", name={"type": "string"})
    answers = await ask(ctx, requests, "by-capability")
    return answers if isinstance(answers, InputRequiredResult) else f"{len(answers)} answers"


# Definitions.


@server.tool(name="test_x_mcp_header")
def mirrored_header(
    region: Annotated[str, Field(description="Mirrored into a header", json_schema_extra={"x-mcp-header": "Region"})],
) -> str:
    """Has a parameter that travels in a header too."""
    return f"region={region}"


@server.tool(name="json_schema_2020_12_tool")
def schema_2020_12() -> str:
    """Has an input schema with the keywords of 2020-12."""
    return "ok"


def _install_schema() -> None:
    # The SDK derives schemas from signatures; this one cannot be said by a signature.
    tool = server._tool_manager.get_tool("json_schema_2020_12_tool")
    assert tool is not None
    tool.parameters = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }


_install_schema()

# Changes.

_changes = 0


@server.tool(name="test_trigger_tool_change")
async def change_tools(ctx: Context[Any, Any]) -> str:
    """Adds a tool."""
    global _changes
    _changes += 1
    server.add_tool(simple_text, name=f"test_added_{_changes}")
    await ctx.notify_tools_changed()
    return "changed"


@server.tool(name="test_trigger_prompt_change")
async def change_prompts(ctx: Context[Any, Any]) -> str:
    """Adds a prompt."""
    global _changes
    _changes += 1
    server.add_prompt(Prompt.from_function(simple_prompt, name=f"test_added_{_changes}"))
    await ctx.notify_prompts_changed()
    return "changed"


# Resources.


@server.resource("test://static-text", mime_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@server.resource("test://static-binary", mime_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return base64.b64decode(PIXEL)


@server.resource("test://template/{id}/data", mime_type="application/json")
def templated(id: str) -> str:
    """A template."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


@server.resource("test://watched-resource", mime_type="text/plain")
def watched() -> str:
    """A resource to subscribe to."""
    return "watched"


# Prompts.


def _said(text: str) -> UserMessage:
    return UserMessage(role="user", content=TextContent(type="text", text=text))


@server.prompt(name="test_simple_prompt")
def simple_prompt() -> list[UserMessage]:
    """Takes no arguments."""
    return [_said("This is a simple prompt for testing.")]


@server.prompt(name="test_prompt_with_arguments")
def prompt_with_arguments(arg1: str, arg2: str) -> list[UserMessage]:
    """Takes two arguments."""
    return [_said(f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'")]


@server.prompt(name="test_prompt_with_embedded_resource")
def prompt_with_resource(resourceUri: str) -> list[UserMessage]:
    """Embeds a resource."""
    block = embedded(resourceUri, "text/plain", "Embedded resource content for testing.")
    return [UserMessage(role="user", content=block), _said("Please process the embedded resource above.")]


@server.prompt(name="test_prompt_with_image")
def prompt_with_image() -> list[UserMessage]:
    """Shows an image."""
    image = ImageContent(type="image", data=PIXEL, mime_type="image/png")
    return [UserMessage(role="user", content=image), _said("Please analyze the image above.")]


@server.prompt(name="test_input_required_result_prompt")
async def prompt_that_asks(ctx: Context[Any, Any]) -> list[UserMessage] | InputRequiredResult:
    """Asks before it answers."""
    request = form("What context should the prompt use?", context={"type": "string"})
    answers = await ask(ctx, {"user_context": request})
    if isinstance(answers, InputRequiredResult):
        return answers
    return [_said(f"Use the following context: {filled(answers['user_context'], 'context')}")]


@server.completion()  # type: ignore[no-untyped-call, untyped-decorator]  # the SDK's decorator has no types
async def complete(ref: Any, argument: Any, context: Any) -> Completion:
    """Completes everything with two cities."""
    return Completion(values=[city for city in ("paris", "park") if city.startswith(argument.value)], has_more=False)


async def _accept(ctx: Any, params: Any) -> EmptyResult:
    return EmptyResult()


server._lowlevel_server.add_request_handler("logging/setLevel", SetLevelRequestParams, _accept)
server._lowlevel_server.add_request_handler("resources/subscribe", SubscribeRequestParams, _accept)
server._lowlevel_server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, _accept)


class Events(EventStore):
    """Every event of the process, in order, for clients that come back."""

    def __init__(self) -> None:
        self._events: list[tuple[str, JSONRPCMessage | None]] = []

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        last = int(last_event_id)
        if not 0 < last <= len(self._events):
            return None
        stream, _ = self._events[last - 1]
        for number, (of, message) in enumerate(self._events[last:], last + 1):
            if of == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


Refuses = Callable[[Scope, bytes], bool]


def refusing(app: ASGIApp, refuses: Refuses, code: int) -> ASGIApp:
    """`app` without the requests that `refuses` picks: they get HTTP 400 and a JSON-RPC error of that code."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        body = await _read(receive)
        if not refuses(scope, body):
            await app(scope, _replayed(body, receive), send)
            return
        answer = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "Bad Request"}}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return guarded


async def _read(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


def _replayed(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return parts.pop() if parts else await receive()

    return replay


def _is_modern(scope: Scope, body: bytes) -> bool:
    return (b"mcp-protocol-version", b"2026-07-28") in scope["headers"] or b"/protocolVersion" in body


def _is_handshake(scope: Scope, body: bytes) -> bool:
    return b'"initialize"' in body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--era", choices=("both", "legacy", "modern"), default="both")
    arguments = parser.parse_args()
    app: ASGIApp = server.streamable_http_app(event_store=Events(), retry_interval=100)
    if arguments.era == "legacy":
        app = refusing(app, _is_modern, -32600)
    if arguments.era == "modern":
        app = refusing(app, _is_handshake, -32601)
    # Where httptools is installed uvicorn would take it, which leaves white space around the values of headers.
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="error", http="h11")


if __name__ == "__main__":
    main()
