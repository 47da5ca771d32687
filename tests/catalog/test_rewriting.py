"""The twin of `mcproxy.catalog.rewriting`."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from mcproxy.call.calls import Complete, Failed, InputRequired, ResultFindings
from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import Party
from mcproxy.catalog.rewriting import Rewriter, is_error, marked
from mcproxy.protocol.jsonrpc import ErrorObject, first_level, parse_object, raw
from mcproxy.protocol.methods import Kind, Shape

REWRITER = Rewriter(lambda uri: f"gh+{uri}")

links = st.fixed_dictionaries({"type": st.just("resource_link"), "uri": st.text(), "name": st.text()})
embedded = st.fixed_dictionaries(
    {"type": st.just("resource"), "resource": st.fixed_dictionaries({"uri": st.text(), "text": st.text()})}
)
others = st.fixed_dictionaries({"type": st.text(), "uri": st.text()}, optional={"resource": st.text()})
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)


def rewritten(shape: Shape, value: Mapping[str, object]) -> object:
    return msgspec.json.decode(raw(REWRITER.result(shape, first_level(value))))


def test_r27_links_and_embedded_resources_of_a_tool_result() -> None:
    content = [
        {"type": "text", "text": "resource file:///a"},
        {"type": "resource_link", "uri": "file:///a", "name": "a"},
        {"type": "resource", "resource": {"uri": "file:///b", "text": "B"}},
        {"type": "custom", "uri": "file:///c"},
    ]
    assert rewritten(Shape.CONTENT, {"content": content}) == {
        "content": [
            {"type": "text", "text": "resource file:///a"},
            {"type": "resource_link", "uri": "gh+file:///a", "name": "a"},
            {"type": "resource", "resource": {"uri": "gh+file:///b", "text": "B"}},
            {"type": "custom", "uri": "file:///c"},
        ]
    }


LONG_TEXT = {"type": "text", "text": "a resource at file:///a, and more: " * 4000}


@pytest.mark.parametrize("beside", [[], [{"uri": "file:///a"}], [7], [{"type": None}]])
def test_r27_a_link_beside_a_long_text_is_renamed(beside: list[object]) -> None:
    link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
    content = [*beside, LONG_TEXT, link]
    assert rewritten(Shape.CONTENT, {"content": content}) == {
        "content": [*beside, LONG_TEXT, {**link, "uri": "gh+file:///a"}]
    }


def test_r32_a_long_text_that_speaks_of_resources_is_the_very_same() -> None:
    result = first_level({"content": [LONG_TEXT, {"type": "custom", "uri": "file:///a"}]})
    assert REWRITER.result(Shape.CONTENT, result) is result


def test_r27_contents_beside_something_that_is_none_are_renamed_all_the_same() -> None:
    contents = [7, {"uri": "file:///a"}, {"uri": 3}]
    assert rewritten(Shape.CONTENTS, {"contents": contents}) == {"contents": [7, {"uri": "gh+file:///a"}, {"uri": 3}]}


def test_r27_contents_of_a_read() -> None:
    contents = [{"uri": "file:///a", "text": "A"}, {"uri": "file:///b", "blob": "Qg=="}]
    assert rewritten(Shape.CONTENTS, {"contents": contents}) == {
        "contents": [{"uri": "gh+file:///a", "text": "A"}, {"uri": "gh+file:///b", "blob": "Qg=="}]
    }


def test_r27_the_children_of_a_directory() -> None:
    children = [{"uri": "skill://a/b", "name": "b", "mimeType": "inode/directory"}]
    assert rewritten(Shape.RESOURCES, {"resources": children, "nextCursor": "skill://a"}) == {
        "resources": [{"uri": "gh+skill://a/b", "name": "b", "mimeType": "inode/directory"}],
        "nextCursor": "skill://a",
    }


def test_r27_a_skill_and_its_files_are_renamed_and_nothing_else_of_them() -> None:
    frontmatter = {"name": "b", "description": "see skill://b", "uri": "skill://b"}
    manifest = {"uri": "skill://b/SKILL.md", "digest": "sha256:00", "size": 7}
    skill = {"uri": "skill://b/SKILL.md", "frontmatter": frontmatter, "resources": [manifest]}
    renamed = {**skill, "uri": "gh+skill://b/SKILL.md", "resources": [{**manifest, "uri": "gh+skill://b/SKILL.md"}]}
    assert rewritten(Shape.SKILL, {"skill": skill, "ttlMs": 1}) == {"skill": renamed, "ttlMs": 1}
    entry = REWRITER.entry(Kind.SKILLS, first_level(skill), "gh+skill://b/SKILL.md")
    assert msgspec.json.decode(raw(entry)) == renamed
    dynamic = {**skill, "resources": "dynamic"}
    assert rewritten(Shape.SKILL, {"skill": dynamic}) == {"skill": {**dynamic, "uri": "gh+skill://b/SKILL.md"}}


def test_r27_messages_hold_one_block_or_several() -> None:
    link = {"type": "resource_link", "uri": "x:y"}
    changed = {"type": "resource_link", "uri": "gh+x:y"}
    messages = [{"role": "user", "content": link}, {"role": "user", "content": [link, link]}]
    assert rewritten(Shape.MESSAGES, {"messages": messages}) == {
        "messages": [{"role": "user", "content": changed}, {"role": "user", "content": [changed, changed]}]
    }


def test_r27_the_uri_of_an_app_in_either_place() -> None:
    meta = {"ui": {"resourceUri": "ui://a", "other": 1}, "ui/resourceUri": "ui://a", "mine": "ui://a"}
    assert rewritten(Shape.CONTENT, {"content": [], "_meta": meta}) == {
        "content": [],
        "_meta": {"ui": {"resourceUri": "gh+ui://a", "other": 1}, "ui/resourceUri": "gh+ui://a", "mine": "ui://a"},
    }


def test_r27_a_key_spelled_with_escapes_is_still_found() -> None:
    content = Raw(rb'[{"type":"\u0072\u0065source_link","uri":"a:b"}]')
    assert b"gh+a:b" in bytes(REWRITER.result(Shape.CONTENT, {"content": content})["content"])


def test_r32_a_result_without_uris_is_the_very_same() -> None:
    result = first_level({"content": [{"type": "text", "text": "hello"}], "structuredContent": {"uri": "x:y"}})
    assert REWRITER.result(Shape.CONTENT, result) is result


def test_r32_what_is_not_rewritten_keeps_its_bytes() -> None:
    data = b'{"content":[{"type":"resource_link","uri":"a:b","n":1.0}],"x": {"b" : 1e2, "b2":"\\u00e9"} }'
    after = bytes(raw(REWRITER.result(Shape.CONTENT, parse_object(data))))
    assert b'"n":1.0' in after
    assert b'{"b" : 1e2, "b2":"\\u00e9"}' in after


def test_sampling_holds_uris_in_blocks_and_in_tool_results() -> None:
    link = {"type": "resource_link", "uri": "x:y"}
    message = {"role": "user", "content": [{"type": "tool_result", "content": [link]}, link]}
    request = InputRequest("sampling/createMessage", {"messages": raw([message]), "maxTokens": raw(5)})
    after = REWRITER.request(request)
    assert json.loads(bytes(after.params["messages"]))[0]["content"] == [
        {"type": "tool_result", "content": [{"type": "resource_link", "uri": "gh+x:y"}]},
        {"type": "resource_link", "uri": "gh+x:y"},
    ]
    assert bytes(after.params["maxTokens"]) == b"5"


def test_a_request_without_uris_is_the_very_same() -> None:
    params = {"message": raw("who?"), "requestedSchema": raw({"type": "object"})}
    assert REWRITER.request(InputRequest("elicitation/create", params)).params is params


def test_questions_of_an_unfinished_result_are_rewritten_in_both_places() -> None:
    link = {"role": "user", "content": {"type": "resource_link", "uri": "x:y"}}
    asked = {"q": {"method": "sampling/createMessage", "params": {"messages": [link]}}, "r": {"method": "roots/list"}}
    outcome = InputRequired(
        {
            "q": InputRequest("sampling/createMessage", {"messages": raw([link])}),
            "r": InputRequest("roots/list", {}),
        },
        "state",
        first_level({"resultType": "input_required", "inputRequests": asked, "requestState": "state"}),
    )
    after = REWRITER.outcome(Shape.CONTENT, outcome)
    assert isinstance(after, InputRequired)
    assert b"gh+x:y" in bytes(after.requests["q"].params["messages"])
    result = msgspec.json.decode(raw(after.result))
    assert result["inputRequests"]["q"]["params"]["messages"][0]["content"]["uri"] == "gh+x:y"
    assert result["inputRequests"]["r"] == {"method": "roots/list"}
    assert result["requestState"] == "state"


def test_what_is_given_again_is_renamed_once_for_the_endpoint_that_shows_it() -> None:
    kept = Complete(first_level({"contents": [{"uri": "x:y", "text": "t"}], "ttlMs": 9}), findings=ResultFindings())
    later = replace(kept, result={**kept.result, "ttlMs": raw(5)})
    once, again = REWRITER.outcome(Shape.CONTENTS, kept), REWRITER.outcome(Shape.CONTENTS, later)
    assert isinstance(once, Complete)
    assert isinstance(again, Complete)
    assert again.result["contents"] is once.result["contents"]
    assert again.result == first_level({"contents": [{"uri": "gh+x:y", "text": "t"}], "ttlMs": 5})


def test_what_is_given_again_comes_in_the_names_of_each_caller() -> None:
    kept = Complete(first_level({"contents": [{"uri": "x:y"}]}), findings=ResultFindings())
    other = Rewriter(lambda uri: f"other+{uri}")
    for rewriter, prefix in ((REWRITER, "gh"), (other, "other"), (REWRITER, "gh")):
        shown = rewriter.outcome(Shape.CONTENTS, kept)
        assert isinstance(shown, Complete)
        assert shown.result == first_level({"contents": [{"uri": f"{prefix}+x:y"}]})


def test_an_upstreams_error_passes_untouched() -> None:
    failed = Failed(ErrorObject(-32002, "no x:y", raw({"uri": "x:y"})), Party.UPSTREAM)
    assert REWRITER.outcome(Shape.CONTENTS, failed) is failed


def test_entries_keep_all_but_their_key_and_their_apps_uri() -> None:
    entry = {"name": raw("x"), "_meta": raw({"ui": {"resourceUri": "a:b"}}), "icons": raw([{"src": "http://i"}])}
    after = REWRITER.entry(Kind.TOOLS, entry, "gh__x")
    assert msgspec.json.decode(raw(after)) == {
        "name": "gh__x",
        "_meta": {"ui": {"resourceUri": "gh+a:b"}},
        "icons": [{"src": "http://i"}],
    }


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (b'{"isError":true}', True),
        (b'{"isError": true , "content":[]}', True),
        (b'{"content":[{"isError":true}]}', False),
        (b'{"isError":"true"}', False),
        (b'{"\\u0069sError":true}', True),
        (b'{"isError":false}', False),
    ],
)
def test_a_tools_own_failure_is_told(result: bytes, expected: bool) -> None:
    members = parse_object(result)
    assert is_error(members) is expected
    assert marked(Complete(members)) == Complete(members, expected)


@given(st.lists(st.one_of(links, embedded, others)))
def test_r27_every_uri_in_any_content_resolves_back(content: list[dict[str, object]]) -> None:
    back = Rewriter(lambda uri: uri.removeprefix("gh+"))
    before = first_level({"content": content})
    there = REWRITER.result(Shape.CONTENT, before)
    assert msgspec.json.decode(raw(back.result(Shape.CONTENT, there))) == msgspec.json.decode(raw(before))
    for after, block in zip(msgspec.json.decode(there["content"]), content, strict=True):
        if block["type"] == "resource_link":
            assert after["uri"] == f"gh+{block['uri']}"
        if block["type"] == "resource" and isinstance(block["resource"], dict):
            assert after["resource"]["uri"] == f"gh+{block['resource']['uri']}"


@given(
    st.sampled_from(list(Shape)),
    st.dictionaries(st.sampled_from(["content", "contents", "messages", "_meta", "resource"]), json_values),
)
def test_no_malformed_result_is_an_error(shape: Shape, result: dict[str, object]) -> None:
    assert isinstance(rewritten(shape, result), dict)


def test_a_result_nested_without_end_passes() -> None:
    deep = b"[" * 5000 + b"]" * 5000
    result = {"content": Raw(b'[{"type":"resource","resource":' + deep + b"}]")}
    assert REWRITER.result(Shape.CONTENT, result) is result
