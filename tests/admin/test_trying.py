"""Entries tried from the status page: what is sent, and what is shown of the result."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from mcproxy.admin.page_values import CatalogueRow
from mcproxy.admin.trying import MAX_IMAGE_BYTES, MAX_IMAGES, attempt, can_be_tried, filled
from mcproxy.call.calls import Call, Complete, InputRequired, Outcome
from mcproxy.call.clients import InputRequest
from mcproxy.call.identity import ANONYMOUS
from mcproxy.catalog.views.view import Shown
from mcproxy.protocol.jsonrpc import first_level, raw
from mcproxy.protocol.methods import Kind

pytestmark = pytest.mark.anyio

PNG = base64.b64encode(b"\x89PNG").decode()
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def row(kind: Kind, key: str, **entry: object) -> CatalogueRow:
    return CatalogueRow(kind, Shown(key, "up", key, raw(entry)))


def answering(outcome: Outcome) -> tuple[list[Call], Callable[[Call], Any]]:
    calls: list[Call] = []

    async def handler(call: Call) -> Outcome:
        calls.append(call)
        return outcome

    return calls, handler


def complete(**result: object) -> Outcome:
    return Complete(first_level(result))


def sent(call: Call) -> dict[str, object]:
    return {name: json.loads(bytes(value)) for name, value in call.params.items()}


def asking(**requests: dict[str, object]) -> InputRequired:
    asked = {key: InputRequest("elicitation/create", first_level(params)) for key, params in requests.items()}
    return InputRequired(asked, "sealed", {})


@pytest.mark.parametrize(
    ("item", "form", "method", "params"),
    [
        (
            row(Kind.PROMPTS, "up__p"),
            {"p.code": "x", "p.style": ""},
            "prompts/get",
            {"name": "up__p", "arguments": {"code": "x"}},
        ),
        (row(Kind.TEMPLATES, "up+f:/{path}"), {"p.path": "a b"}, "resources/read", {"uri": "up+f:/a%20b"}),
        (row(Kind.RESOURCES, "up+f:/a"), {}, "resources/read", {"uri": "up+f:/a"}),
        (
            row(Kind.TOOLS, "up__t", inputSchema=SCHEMA),
            {"p.n": "1", "token": "t"},
            "tools/call",
            {"name": "up__t", "arguments": {"n": 1}},
        ),
    ],
)
async def test_each_kind_of_entry_is_asked_for_by_its_own_method(
    item: CatalogueRow, form: dict[str, str], method: str, params: dict[str, object]
) -> None:
    calls, handler = answering(complete(contents=[]))
    assert can_be_tried(item.kind)
    assert not (await attempt(handler, item, ANONYMOUS, form)).is_error
    assert (calls[0].method, sent(calls[0])) == (method, params)


async def test_images_are_shown_apart_and_only_those_that_are_pixels() -> None:
    image = {"type": "image", "mimeType": "image/png", "data": PNG}
    vector = {"type": "image", "mimeType": "image/svg+xml", "data": PNG}
    broken = {"type": "image", "mimeType": "image/png", "data": "%%%"}
    large = {"type": "image", "mimeType": "image/png", "data": "A" * (MAX_IMAGE_BYTES + 4)}
    for result in (
        {"content": [image, vector, broken, large]},
        {"messages": [{"role": "user", "content": image}]},
        {"contents": [{"uri": "x:y", "mimeType": "image/png", "blob": PNG}]},
        {"content": [{"type": "resource", "resource": {"uri": "x:y", "mimeType": "image/png", "blob": PNG}}]},
    ):
        _, handler = answering(complete(**result))
        found = await attempt(handler, row(Kind.TOOLS, "up__t"), ANONYMOUS, {})
        assert found.images == (f"data:image/png;base64,{PNG}",)
        assert "(4 bytes, shown as an image)" in found.text
    _, handler = answering(complete(content=[image] * (MAX_IMAGES + 1)))
    assert len((await attempt(handler, row(Kind.TOOLS, "up__t"), ANONYMOUS, {})).images) == MAX_IMAGES


async def test_a_question_is_shown_and_its_answer_goes_on_with_the_call() -> None:
    item = row(Kind.TOOLS, "up__t", inputSchema=SCHEMA)
    calls, handler = answering(asking(one={"message": "How many?", "requestedSchema": SCHEMA}))
    found = await attempt(handler, item, ANONYMOUS, {"p.n": "1"})
    (question,) = found.questions
    assert (found.goes_on, question.message, [each.name for each in question.fields]) == (True, "How many?", ["n"])
    assert json.loads(bytes(calls[0].caller.capabilities["elicitation"])) == {"form": {}}

    form = {"p.n": "1", "asked": found.asked, "state": found.state or "", "q.one.n": "3", "action": "accept"}
    await attempt(handler, item, ANONYMOUS, form)
    assert sent(calls[1]) == {
        "name": "up__t",
        "arguments": {"n": 1},
        "requestState": "sealed",
        "inputResponses": {"one": {"action": "accept", "content": {"n": 3}}},
    }
    await attempt(handler, item, ANONYMOUS, {**form, "action": "decline", "q.one.n": ""})
    assert sent(calls[2])["inputResponses"] == {"one": {"action": "decline"}}


async def test_a_call_that_only_has_to_be_asked_again_goes_on_with_its_state() -> None:
    calls, handler = answering(InputRequired({}, "sealed", {}))
    item = row(Kind.RESOURCES, "up+f:/a")
    found = await attempt(handler, item, ANONYMOUS, {})
    assert (found.goes_on, found.questions) == (True, ())
    await attempt(handler, item, ANONYMOUS, {"asked": found.asked, "state": found.state or "", "action": "accept"})
    assert sent(calls[1]) == {"uri": "up+f:/a", "requestState": "sealed"}


async def test_what_the_page_cannot_answer_is_said() -> None:
    for request in (
        InputRequest("sampling/createMessage", {}),
        InputRequest("elicitation/create", {"mode": Raw(b'"url"'), "url": Raw(b'"https://x.example"')}),
    ):
        _, handler = answering(InputRequired({"one": request}, None, {}))
        found = await attempt(handler, row(Kind.TOOLS, "up__t"), ANONYMOUS, {})
        assert (found.is_error, found.goes_on) == (True, False)
        assert request.method in found.text


@pytest.mark.parametrize("form", [{"p.n": "x"}, {"asked": "{"}, {"asked": '{"a": {}}', "p.n": ""}])
async def test_a_form_that_cannot_be_read_calls_nothing(form: dict[str, str]) -> None:
    calls, handler = answering(complete())
    found = await attempt(handler, row(Kind.TOOLS, "up__t", inputSchema=SCHEMA), ANONYMOUS, form)
    assert (found.is_error, calls) == (True, [])


def test_parameters_are_told_from_the_form_s_own_fields_by_their_beginning() -> None:
    assert filled({"p.token": "mine", "token": "ours", "action": "accept"}) == {"token": "mine"}
