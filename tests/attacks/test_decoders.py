"""No list or map of a peer takes far more memory than its text, however small its entries are (requirement R78).

Every decoder is fed texts of the smallest entries. What is measured is what the interpreter allocates meanwhile.
"""

from __future__ import annotations

import importlib
import pkgutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec
import pytest
from msgspec import Raw
from msgspec import inspect as types

import mcproxy
from mcproxy.call.calls import Complete, Outcome
from mcproxy.catalog.annotations import is_read_only
from mcproxy.catalog.arguments import overridden
from mcproxy.catalog.contents import contents_fault
from mcproxy.catalog.rewriting import Rewriter
from mcproxy.catalog.search.signatures import summary
from mcproxy.catalog.skills import files_of, readable_children
from mcproxy.catalog.views.entry_shapes import ENTRIES
from mcproxy.catalog.views.snapshots import read_listing
from mcproxy.cluster.homes import body_home
from mcproxy.concurrency.turns import at_once
from mcproxy.downstream.handshake.client_requests import in_older_form
from mcproxy.features.approvals.approval import event_of
from mcproxy.gateway.input.url_elicitation import url_elicitations
from mcproxy.gateway.listings.pagination import FetchedPages, PageLimits, fetch_pages
from mcproxy.protocol import jsonrpc
from mcproxy.protocol.eras import V2025_06_18
from mcproxy.protocol.headers import mirrored_parameters
from mcproxy.protocol.inputs import check_answer
from mcproxy.protocol.json import bounds
from mcproxy.protocol.json.bounds import Bounded, TooMany, parse_array, parse_texts, parse_value
from mcproxy.protocol.json.repeated_members import repeats_member
from mcproxy.protocol.jsonrpc import (
    UNSUPPORTED_PROTOCOL_VERSION,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    Params,
    Response,
    parse_message,
)
from mcproxy.protocol.methods import METHODS, Kind, Shape
from mcproxy.protocol.tasks import listened
from mcproxy.settings import Content
from mcproxy.settings.upstreams.upstream import ArgumentOverride
from mcproxy.upstream.handshake.server_requests import UrlElicitations, with_single_block
from mcproxy.upstream.link import supported_versions
from mcproxy.upstream.stateless import probe
from mcproxy.upstream.stateless.dialect import read_result
from mcproxy.upstream.stateless.parameter_headers import ParameterHeaders
from mcproxy.upstream.stateless.subscriptions import ListenFilter
from tests.docs.decoders import grows
from tests.docs.decoders import places as all_places

pytestmark = pytest.mark.anyio

SIZE: Final = 8 * 2**20
"""Bytes of each text."""
MULTIPLE: Final = 4.5
"""Times SIZE that may be allocated: copies of the text, and `MAX_VALUES` values at the most."""

SMALLEST: Final = {
    "numbers": b"0",
    "texts": b'"ab"',
    "arrays": b"[]",
    "objects": b'{"":0}',
    "known objects": b'{"name":"ab","method":"ab","uri":"a:b","src":"","const":"a","title":"","type":"text"}',
}


def array(item: bytes) -> bytes:
    return b"[%b]" % b",".join([item] * (SIZE // (len(item) + 1)))


def inner_array(item: bytes) -> bytes:
    return b"[%b]" % array(item)


def members(item: bytes) -> bytes:
    return b"{%b}" % b",".join(b'"%x":%b' % (number, item) for number in range(SIZE // (len(item) + 9)))


def repeated(item: bytes) -> bytes:
    """An object of one name, over and over."""
    item = b'"a":%b' % item
    return b"{%b}" % b",".join([item] * (SIZE // (len(item) + 1)))


SHAPES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "an array": array,
    "an array in an array": inner_array,
    "members": members,
    "one name": repeated,
}


def peak_of(work: Callable[[Raw], object], text: Raw) -> int:
    """Bytes that were allocated at the worst, beyond what was there before."""
    tracemalloc.start()
    try:
        with suppress(Exception):  # Each refuses what it cannot read in its own way.
            work(text)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bounded() -> Iterator[tuple[str, Bounded[Any]]]:
    """Those that modules and their tables hold."""
    for module in pkgutil.walk_packages(mcproxy.__path__, "mcproxy."):
        if module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            for key, each in value.items() if isinstance(value, dict) else [("", value)]:
                if isinstance(each, Bounded):
                    yield f"{module.name}.{name} {key}".strip(), each


def ways(read: types.Type, around: bytes = b"%b", seen: frozenset[type] = frozenset()) -> Iterator[bytes]:
    """Texts with a gap, for each place of a type at which there may be many values."""
    match read:
        case types.UnionType(types=alternatives):
            for each in alternatives:
                yield from ways(each, around, seen)
        case types.StructType(cls=cls, fields=fields) if cls not in seen:
            for field in fields:
                inner = around.replace(b"%b", b'{"%b":%%b}' % field.encode_name.encode())
                if grows(field.type):
                    yield from ways(field.type, inner, seen | {cls})
        case _:
            yield around


def feeding() -> Iterator[Any]:
    for name, decoder in bounded():
        for way in dict.fromkeys(ways(types.type_info(decoder.type))):
            yield pytest.param(decoder, way, id=f"{name} {way.decode()}")


REWRITER: Final = Rewriter(lambda uri: f"a+{uri}")


def listed(text: Raw) -> object:
    return read_listing("a", Kind.TOOLS, [Raw(b'{"name":"a","inputSchema":{"type":"object"},"icons":%b}' % text)])


def rewritten(shape: Shape, member: str) -> Callable[[Raw], object]:
    def rewrite(text: Raw) -> object:
        return REWRITER.outcome(shape, Complete({member: Raw(bytes(text).replace(b'"text"', b'"resource"'))}))

    return rewrite


def a_message(text: Raw) -> object:
    read = parse_message(b'{"jsonrpc":"2.0","id":1,"result":{"a":%b}}' % text)
    assert isinstance(read, Response)
    return read


FUNCTIONS: Final[dict[str, Callable[[Raw], object]]] = {
    "a message": a_message,
    "a result": lambda text: parse_message(b'{"jsonrpc":"2.0","id":1,"result":%b}' % text),
    "an error": lambda text: parse_message(
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"","data":%b}}' % text
    ),
    "a batch": lambda text: jsonrpc.parse_batch(bytes(text)),
    "an object": jsonrpc.parse_object,
    "any value": parse_value,
    "a few items": lambda text: parse_array(text, 10),
    "ten thousand items": lambda text: parse_array(text, 10_000),
    "a list's items": lambda text: parse_array(text, 100_000),
    "the first items": bounds.first_items,
    "texts": lambda text: parse_texts(text, 1000),
    "repeated members": repeats_member,
    "an entry": listed,
    "entries": lambda text: read_listing("a", Kind.TOOLS, [text]),
    "a skill's files": lambda text: files_of(Raw(b'{"uri":"a:b","resources":%b}' % text)),
    "a directory": lambda text: readable_children({"resources": text}, lambda uri: True),
    "contents": lambda text: contents_fault(Content(max_bytes=10), {"contents": text}),
    "a page of tools": lambda text: at_once(
        ParameterHeaders("a").note({"tools": Raw(bytes(text).replace(b'"text"', b'"x-mcp-header"'))})
    ),
    "a schema's parameters": lambda text: mirrored_parameters(Raw(b'{"x-mcp-header":"a","properties":%b}' % text)),
    "a schema with overrides": lambda text: overridden(
        {"inputSchema": Raw(b'{"properties":%b}' % text)}, {"a": ArgumentOverride(hide=True)}
    ),
    "versions": lambda text: supported_versions(
        ErrorObject(UNSUPPORTED_PROTOCOL_VERSION, "", Raw(b'{"supported":%b}' % text))
    ),
    "the versions of a discovery": lambda text: probe.identity(Response(1, {"supportedVersions": text})),
    "an acknowledgement": lambda text: ListenFilter(uris=frozenset({"a:b"})).agreed(
        {"notifications": Raw(b'{"resourceSubscriptions":%b}' % text)}
    ),
    "tasks to listen for": lambda text: listened({"notifications": Raw(b'{"taskIds":%b}' % text)}),
    "input requests": lambda text: read_result(
        {"resultType": Raw(b'"input_required"'), "inputRequests": text}, METHODS["tools/call"]
    ),
    "params of input requests": lambda text: read_result(
        {
            "resultType": Raw(b'"input_required"'),
            "inputRequests": Raw(b'{"a":{"method":"roots/list","params":%b}}' % text),
        },
        METHODS["tools/call"],
    ),
    "elicitations": lambda text: url_elicitations(
        ErrorObject(URL_ELICITATION_REQUIRED, "", Raw(b'{"elicitations":%b}' % text))
    ),
    "elicitations that are noted": lambda text: UrlElicitations(100).note_required(
        ErrorObject(URL_ELICITATION_REQUIRED, "", Raw(b'{"elicitations":%b}' % text)), None
    ),
    "an answer to a form": lambda text: check_answer(
        "elicitation/create", Raw(b'{"action":"accept","content":%b}' % text)
    ),
    "an answer of roots": lambda text: check_answer("roots/list", Raw(b'{"roots":%b}' % text)),
    "an approval": lambda text: event_of(Raw(b'{"action":"accept","content":%b}' % text)),
    "a model's answer": lambda text: with_single_block(V2025_06_18, {"content": text}),
    "messages to a model": lambda text: in_older_form(V2025_06_18, {"messages": text}),
    "choices of a form": lambda text: in_older_form(
        V2025_06_18, {"requestedSchema": Raw(b'{"properties":{"a":{"oneOf":%b}}}' % text)}
    ),
    "a body's tasks": lambda text: body_home(b'{"params":{"taskIds":%b}}' % text),
    "content to rewrite": rewritten(Shape.CONTENT, "content"),
    "contents to rewrite": rewritten(Shape.CONTENTS, "contents"),
    "resources to rewrite": rewritten(Shape.RESOURCES, "resources"),
    "annotations": lambda text: is_read_only(Raw(b'{"annotations":{"readOnlyHint":true},"a":%b}' % text)),
    "a summary": lambda text: summary(Raw(b'{"name":"a","inputSchema":{"properties":%b}}' % text)),
    "an entry's shape": lambda text: ENTRIES[Kind.PROMPTS].checked(Raw(b'{"name":"a","arguments":%b}' % text)),
    "a tool's shape": lambda text: ENTRIES[Kind.TOOLS].checked(
        Raw(b'{"name":"a","inputSchema":{"type":"object","properties":%b}}' % text)
    ),
}


def texts() -> list[Any]:
    return [pytest.param(shape, item, id=f"{shape} of {item}") for shape in SHAPES for item in SMALLEST]


@pytest.fixture(scope="module", autouse=True)
def _structures() -> None:
    """Decoders that are made for the first long array, and then kept."""
    for most in (1, 2_000, 10_000):
        with suppress(TooMany):
            parse_array(b"[%b0]" % (b"0," * 100_000), most)
    bounds.first_items(b"[]")


def test_r78_every_decoder_of_a_list_or_a_map_has_a_bound() -> None:
    assert [f"{place.where}: {place.what}" for place in all_places() if place.bound is None] == []


@pytest.mark.parametrize(("shape", "item"), texts())
def test_r78_no_decoder_takes_far_more_memory_than_its_text(shape: str, item: str) -> None:
    text = Raw(SHAPES[shape](SMALLEST[item]))
    took = {name: peak_of(read, text) / len(text) for name, read in FUNCTIONS.items()}
    assert {name: round(times, 1) for name, times in took.items() if times > MULTIPLE} == {}


@pytest.mark.parametrize(("decoder", "way"), list(feeding()))
def test_r78_what_is_decoded_whole_is_counted_before(decoder: Bounded[Any], way: bytes) -> None:
    for item in (b"0", b"[]", b'{"":0}', b'"ab"'):
        text = Raw(way.replace(b"%b", array(item)))
        with pytest.raises(TooMany, match="values"):
            decoder.decode(text)
        assert peak_of(decoder.decode, text) < MULTIPLE * SIZE


@pytest.mark.parametrize("item", list(SMALLEST))
async def test_r78_a_page_of_the_smallest_entries_is_cut_where_it_has_too_many(item: str) -> None:
    page = Raw(array(SMALLEST[item]))

    async def send(params: Params) -> Outcome:
        return Complete({"tools": page})

    tracemalloc.start()
    try:
        fetched = await fetch_pages(send, Kind.TOOLS, PageLimits(10, 20_000, 2**30))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(fetched, FetchedPages)
    assert fetched.cut is not None
    assert "a page of it has more than" in fetched.cut
    assert 0 < len(fetched.items) <= 20_000
    assert peak < MULTIPLE * SIZE


@pytest.mark.parametrize("most", [10, 999, 5_000, 10_000, 20_000, 100_000])
@pytest.mark.parametrize("item", [b"{}", b'{"a":[1,2,{}]}', b'{"a":",[{"}'])
def test_as_many_items_as_are_allowed_are_read_and_one_more_is_not(most: int, item: bytes) -> None:
    text = b" [ %b ]" % b" , ".join([item] * most)
    assert [bytes(each) for each in parse_array(text, most)] == [item] * most
    with pytest.raises(TooMany, match=f"more than {most} items"):
        parse_array(text.replace(b"[", b"[{},", 1), most)


@pytest.mark.parametrize(
    "text", [b'{"a":[%b1]}' % (b"1," * 50_000), b'"%b"' % (b"," * 50_000), b"[1%b" % (b",4" * 900)]
)
def test_what_is_no_array_is_not_said_to_have_too_many_items(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError) as refused:
        parse_array(text, 1000)
    assert not isinstance(refused.value, TooMany)


@pytest.mark.parametrize("filler", [b"a,[{", b'\\"', b"\\\\", b'\\\\\\"', b"\\u005b,"])
def test_what_stands_in_strings_is_not_counted(filler: bytes) -> None:
    text = b'{"a":"%b","b":[1,2,3]}' % (filler * 5000)
    assert bounds.has_more_values(text, 4)
    assert not bounds.has_more_values(text, 5)
    assert Bounded(dict[str, Any], 5).decode(text)["b"] == [1, 2, 3]
