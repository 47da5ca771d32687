"""The twin of `mcproxy.catalog.views.snapshots`."""

from __future__ import annotations

import sys

import msgspec
import pytest
from msgspec import Raw

from mcproxy.catalog.views.snapshots import read_listing, reading
from mcproxy.concurrency.turns import at_once
from mcproxy.protocol.jsonrpc import raw
from mcproxy.protocol.methods import Kind
from tests.catalog.views.samples import listing, skill_entry
from tests.fakes.upstream import tool


def test_entries_without_a_key_or_with_one_twice_are_dropped_and_reported() -> None:
    items = [raw(tool("a")), raw({"name": 7}), raw({}), Raw(b"[]"), Raw(b"null"), raw(tool("a", title="again"))]
    read = read_listing("up", Kind.TOOLS, items)
    assert [entry.key for entry in read.entries] == ["a"]
    assert bytes(read.entries[0].data) == bytes(raw(tool("a")))
    assert [entry.name for entry in read.refused] == ["", "", "", "", "a"]


def test_r1_an_entry_nested_too_deeply_is_dropped_and_reported() -> None:
    fine = Raw(b'{"name":"fine","text":"' + b"[" * 300 + b'","inputSchema":' + b"[" * 150 + b"]" * 150 + b"}")
    deep = Raw(b'{"name":"deep","inputSchema":' + b"[" * 200 + b"]" * 200 + b"}")
    read = read_listing("up", Kind.TOOLS, [fine, deep])
    assert [entry.key for entry in read.entries] == ["fine"]
    assert [(refused.name, refused.why) for refused in read.refused] == [("deep", "it nests deeper than 200 levels")]


@pytest.mark.parametrize(
    "entry",
    [
        b'{"name":"safe","name":"rm","inputSchema":{}}',
        b'{"name":"rm","inputSchema":{"type":"object"},"inputSchema":{"type":"object"}}',
        b'{"name":"rm","inputSchema":{"properties":{"a":{"description":"x","\\u0064escription":"y"}}}}',
    ],
)
def test_r45_an_entry_that_two_parsers_may_read_differently_is_dropped_and_reported(entry: bytes) -> None:
    read = read_listing("up", Kind.TOOLS, [Raw(entry), raw(tool("fine", _meta={"name": "rm", "a": {"name": 1}}))])
    assert [entry.key for entry in read.entries] == ["fine"]
    assert [(refused.name, refused.why) for refused in read.refused] == [
        ("rm", "a member comes twice in it, of which clients may read either")
    ]


def test_a_skill_whose_files_cannot_be_told_is_dropped_and_reported() -> None:
    read = listing(Kind.SKILLS, {**skill_entry("skill://refunds"), "resources": "some"})
    assert read.entries == ()
    assert [refused.why for refused in read.refused] == ['its resources are neither a list of files nor "dynamic"']


def test_an_entry_that_stayed_is_the_same_object_in_the_next_list() -> None:
    before = listing(Kind.TOOLS, tool("a"), tool("b"), tool("c"))
    items = [raw(tool("c")), raw(tool("b", title="new")), raw(tool("a"))]
    after = at_once(reading("up", Kind.TOOLS, items, before))
    assert after == listing(Kind.TOOLS, tool("c"), tool("b", title="new"), tool("a"))
    assert [entry in before.entries for entry in after.entries] == [True, False, True]
    assert after.entries[0] is before.entries[2]
    assert after.entries[2] is before.entries[0]


def test_an_entry_that_is_only_written_otherwise_is_the_same_object_in_the_next_list() -> None:
    first = Raw(b'{"name":"a","title":"\xc3\xa9","inputSchema":{"type":"object","properties":{"x":{},"y":{}}}}')
    again = Raw(b'{"inputSchema": {"properties":{"y":{},"x":{}},"type":"object"}, "title":"\\u00e9","name":"a"}')
    before = read_listing("up", Kind.TOOLS, [first])
    after = at_once(reading("up", Kind.TOOLS, [again], before))
    assert after.entries[0] is before.entries[0]


@pytest.mark.parametrize(
    ("first", "changed"),
    [
        (b'{"name":"a","x":1}', b'{"name":"a","x":true}'),
        (b'{"name":"a","x":1}', b'{"name":"a","x":1.0}'),
        (b'{"name":"a","x":123456789012345678901}', b'{"name":"a","x":123456789012345678902}'),
        (b'{"name":"a","x":["y","z"]}', b'{"name":"a","x":["z","y"]}'),
        (b'{"name":"a","x":null}', b'{"name":"a"}'),
        (b'{"name":"a","x":1e999}', b'{"name":"a", "x":1e999}'),
    ],
)
def test_an_entry_that_may_say_something_else_is_a_new_one(first: bytes, changed: bytes) -> None:
    before = read_listing("up", Kind.TOOLS, [Raw(first)])
    after = at_once(reading("up", Kind.TOOLS, [Raw(changed)], before))
    assert [bytes(entry.data) for entry in after.entries] == [changed]


def test_an_entry_keeps_no_more_of_its_page_than_itself() -> None:
    page = b"[%s]" % b",".join(bytes(raw(tool(name))) for name in "abc")
    held = sys.getrefcount(page)
    read = read_listing("up", Kind.TOOLS, msgspec.json.decode(page, type=list[Raw]))
    assert len(read.entries) == 3
    assert sys.getrefcount(page) == held


def test_r78_others_have_their_turn_while_a_long_list_is_read() -> None:
    items = [raw(tool(f"t{number}")) for number in range(1000)]
    assert sum(1 for _ in reading("up", Kind.TOOLS, items)) >= 10
