"""Calls made from the status page: a tool, a prompt, a resource or a template, tried as the operator who looks at it.

The page is a stateless client: what a server asks in the middle of a call comes as a result, is shown as a form, and
goes with the next request. It answers elicitation by form alone; sampling, roots and visits of URLs are refused.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Raw

from mcproxy import __version__
from mcproxy.admin.entry_form import InvalidInput, arguments, expanded
from mcproxy.admin.page_values import CatalogueRow, Question, TryResult
from mcproxy.call.calls import Call, Complete, Failed, Handler, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError
from mcproxy.call.identity import Caller, Principal
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.json.bounds import TooMany, parse_value
from mcproxy.protocol.jsonrpc import INVALID_REQUEST, Params, json_of, parse_text, raw
from mcproxy.protocol.methods import METHODS, Kind

PARAMETER: Final = "p."
"""Precedes the names of parameters among those of a form's fields."""
ANSWER: Final = "q."
"""Precedes the key of a question, and then the name of one of its fields."""
MAX_SHOWN: Final = 200_000
"""Largest result that the page shows, in characters."""
MAX_MESSAGES: Final = 100
"""Most messages during one call that the page shows."""
MAX_MESSAGE: Final = 500
"""Longest of these that is shown whole, in characters."""
MAX_IMAGES: Final = 8
MAX_IMAGE_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one image, in Base64."""
MAX_QUESTIONS: Final = 8

_ELICITATION: Final = "elicitation/create"
_CAPABILITIES: Final = {"elicitation": Raw(b'{"form":{}}')}
_METHODS: Final = {
    Kind.TOOLS: "tools/call",
    Kind.RESOURCES: "resources/read",
    Kind.TEMPLATES: "resources/read",
    Kind.PROMPTS: "prompts/get",
}
_IMAGES: Final = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
"""Types that are shown: pixels alone, nothing that is interpreted."""


@dataclass
class TryOutClient:
    """The page as an MCP client: collects messages sent during the call, and answers no question."""

    messages: list[str] = field(default_factory=list)

    def notify(self, method: str, params: Params) -> None:
        if len(self.messages) < MAX_MESSAGES:
            self.messages.append(f"{method}: {_text(params.get('message') or params.get('data'))}"[:MAX_MESSAGE])

    async def ask(self, request: InputRequest) -> Raw:
        raise McpError(INVALID_REQUEST, f"the status page cannot answer {request.method}")


def can_be_tried(kind: Kind) -> bool:
    """Whether the status page offers a form to try entries of this kind."""
    return kind in _METHODS


async def attempt(handler: Handler, item: CatalogueRow, principal: Principal, form: Mapping[str, str]) -> TryResult:
    """Makes the call that a form of the entry's page describes, or goes on with it where the form has answers."""
    client = TryOutClient()
    try:
        params = {**_params(item, filled(form)), **_answers(form)}
    except InvalidInput as unusable:
        return TryResult(is_error=True, text=str(unusable))
    info = raw({"name": "mcproxy-status-page", "version": __version__})
    caller = Caller(principal, LATEST, _CAPABILITIES, info, log_level="info")
    outcome = await handler(Call(METHODS[_METHODS[item.kind]], params, caller, client))
    return _result(outcome, tuple(client.messages))


def filled(form: Mapping[str, str]) -> dict[str, str]:
    """The values of the entry's parameters, by name. They are prefixed: a parameter may be called `token` too."""
    return {name.removeprefix(PARAMETER): value for name, value in form.items() if name.startswith(PARAMETER)}


def _params(item: CatalogueRow, values: Mapping[str, str]) -> dict[str, Raw]:
    """Raises InvalidInput."""
    match item.kind:
        case Kind.TOOLS:
            found = arguments(item.entry.get("inputSchema") or {}, values)
            return {"name": raw(item.shown.key), "arguments": raw(found)}
        case Kind.PROMPTS:
            return {
                "name": raw(item.shown.key),
                "arguments": raw({name: text for name, text in values.items() if text}),
            }
        case Kind.TEMPLATES:
            return {"uri": raw(expanded(item.shown.key, values))}
        case _:
            return {"uri": raw(item.shown.key)}


def _answers(form: Mapping[str, str]) -> dict[str, Raw]:
    """What goes along with a further round: the answers to questions, and the state. Raises InvalidInput."""
    try:
        asked = json.loads(form.get("asked", "{}"))
    except ValueError as error:
        raise InvalidInput("the questions of the form are malformed: call again") from error
    state = {"requestState": raw(form["state"])} if "state" in form else {}
    if not isinstance(asked, dict) or not asked:
        return state
    accepts = form.get("action") == "accept"
    given: dict[str, Any] = {}
    for key, schema in asked.items():
        prefix = f"{ANSWER}{key}."
        values = {name.removeprefix(prefix): text for name, text in form.items() if name.startswith(prefix)}
        content = {"content": arguments(schema if isinstance(schema, dict) else {}, values)} if accepts else {}
        given[key] = {"action": "accept" if accepts else "decline", **content}
    return {"inputResponses": raw(given), **state}


def _result(outcome: Outcome, messages: tuple[str, ...]) -> TryResult:
    match outcome:
        case Complete(result=result, is_error=is_error):
            try:
                value = parse_value(json_of(result))
            except TooMany as error:
                return TryResult(is_error, f"the result is not shown: it {error}", messages)
            images = tuple(_taken_images(value))
            text = json.dumps(value, indent=2, ensure_ascii=False)[:MAX_SHOWN]
            return TryResult(is_error, text, messages, images)
        case InputRequired(requests=requests, state=state):
            questions = _questions(requests)
            if questions is None or not (questions or state):
                asked = ", ".join(request.method for request in requests.values())
                return TryResult(True, f"the server asks for input, which this page cannot give: {asked}", messages)
            return TryResult(False, "", messages, questions=questions, state=state)
        case Failed(error=error):
            return TryResult(True, f"{error.code}: {error.message}", messages)


def _questions(requests: Mapping[str, InputRequest]) -> tuple[Question, ...] | None:
    """The forms that a server asks to be filled in; None where it asks for anything else."""
    found: list[Question] = []
    for key, request in requests.items():
        schema = request.params.get("requestedSchema")
        if request.method != _ELICITATION or schema is None or len(found) == MAX_QUESTIONS:
            return None
        try:
            shape = parse_value(schema)
        except TooMany:
            return None
        found.append(Question(key, _text(request.params.get("message")), shape if isinstance(shape, dict) else {}))
    return tuple(found)


def _taken_images(value: object) -> Iterator[str]:
    """The images of a result as `data:` URLs; in the result, a note of their size stands in their place."""
    left = MAX_IMAGES
    for block in _blocks(value):
        key = "blob" if "blob" in block else "data"
        kind, data = block.get("mimeType"), block.get(key)
        if not (left and kind in _IMAGES and isinstance(data, str) and len(data) <= MAX_IMAGE_BYTES):
            continue
        try:
            size = len(base64.b64decode(data, validate=True))
        except binascii.Error:
            continue
        block[key] = f"({size} bytes, shown as an image)"
        left -= 1
        yield f"data:{kind};base64,{data}"


def _blocks(value: object) -> Iterator[dict[str, Any]]:
    """The blocks of content in the result of a tool, a prompt or a read."""
    result = value if isinstance(value, dict) else {}
    messages = result.get("messages")
    contents = [one.get("content") for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
    for found in (result.get("content"), result.get("contents"), *contents):
        for block in found if isinstance(found, list) else [found]:
            if isinstance(block, dict):
                embedded = block.get("resource")
                yield embedded if isinstance(embedded, dict) else block


def _text(value: Raw | None) -> str:
    if value is None:
        return ""
    text = parse_text(value)
    return bytes(value).decode() if text is None else text
