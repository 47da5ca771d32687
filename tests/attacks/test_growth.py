"""Work on what a peer sent grows no faster than what it sent (requirement R78).

What is measured: the CPU time of this thread alone, which neither other load nor waiting adds to, as the least of
several runs, without rounds of the garbage collector: they cost what all else in the process holds. Nothing here passes
or fails by how long something takes: only by the ratio between an input and one eight times as large. Linear work makes
that ratio 8, quadratic work 64; `MAX_RATIO` lies between the two, a factor of three from either, and inputs are so
large that neither constant costs nor the first touch of memory hide the growth. Counting the lines of Python that run
would not see the engines in C (regular expressions, JSON, Base64), where the faults of this kind were.
"""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import pytest
from msgspec import Raw

import mcproxy
from mcproxy.access.audit.record_lines import MAX_READ, cleaning
from mcproxy.access.policy import Policy, PolicyItem
from mcproxy.call.calls import Complete
from mcproxy.call.identity import ANONYMOUS, Caller
from mcproxy.catalog.arguments import overridden
from mcproxy.catalog.contents import contents_fault
from mcproxy.catalog.naming import Layout, layouts
from mcproxy.catalog.rewriting import Rewriter
from mcproxy.catalog.uri_matching import matcher, readings, uri_flaw
from mcproxy.catalog.uris import canonical
from mcproxy.catalog.views.snapshots import read_listing
from mcproxy.catalog.views.view import View
from mcproxy.features.results.abridging import Abridgement
from mcproxy.features.results.kept import KeptResults, Origin
from mcproxy.features.results.structured import shortened_arrays
from mcproxy.login.visits import Visits
from mcproxy.protocol.eras import LATEST
from mcproxy.protocol.headers import decode_value, mirrored_parameters, parameter_headers
from mcproxy.protocol.json.nesting import nests_deeper
from mcproxy.protocol.jsonrpc import (
    MAX_BATCH,
    MAX_MEMBERS,
    InvalidMessage,
    parse_batch,
    parse_message,
    parse_object,
    raw,
)
from mcproxy.protocol.methods import Kind, Shape
from mcproxy.protocol.sse import EventDecoder
from mcproxy.sealing import Sealer
from mcproxy.settings import Content, KeptResultLimits
from mcproxy.settings.access.policy import PolicySettings
from mcproxy.settings.upstreams.upstream import ArgumentOverride
from mcproxy.telemetry.logs import redacting
from mcproxy.upstream.oauth.challenge import MAX_HEADER, bearer_challenge
from mcproxy.upstream.redaction import Redaction
from tests.catalog.whole import name_table
from tests.fakes.upstream import settings_of

MAX_RATIO: Final = 24
"""Of the time for eight times the input. `_FLOOR` is the least time that counts: below it clocks and caches speak."""
_FLOOR: Final = 200_000
"""Nanoseconds."""


def time_of(work: Callable[[], object]) -> int:
    """Nanoseconds of CPU."""
    collects = gc.isenabled()
    gc.disable()
    try:
        began = time.thread_time_ns()
        with suppress(InvalidMessage):
            work()
        return time.thread_time_ns() - began
    finally:
        if collects:
            gc.enable()


def grows_gently(work: Callable[[Any], object], small: Any, large: Any) -> bool:
    """Whether the ratio is within bounds once: noise makes it larger, and never smaller."""
    bound = MAX_RATIO * max(_FLOOR, min(time_of(lambda: work(small)) for _ in range(3)))
    return any(time_of(lambda: work(large)) <= bound for _ in range(6))


def test_what_grows_with_the_square_is_told_from_what_does_not() -> None:
    evil = re.compile(r"eyJ[\w-]+\.")
    assert not grows_gently(evil.search, "eyJ" * 500, "eyJ" * 4000)
    assert grows_gently(re.compile(r"eyJ[\w-]*").search, "eyJ" * 20_000, "eyJ" * 160_000)


# Parsers of JSON

MESSAGE = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{'


def members(number: int) -> bytes:
    return b",".join(b'"a%d":1' % index for index in range(number))


TEXTS: dict[str, Callable[[int], bytes]] = {
    "escapes, unfinished": lambda n: MESSAGE + b'"a":"' + b"\\u0041" * n,
    "escaped backslashes, unfinished": lambda n: MESSAGE + b'"a":"' + b"\\\\" * n,
    "escaped quotes": lambda n: MESSAGE + b'"a":"' + b'\\"' * n + b'"}}',
    "surrogate pairs, then a half": lambda n: MESSAGE + b'"a":"' + b"\\ud83d\\ude00" * n + b'\\ud83d"}}',
    "halves of pairs": lambda n: MESSAGE + b'"a":"' + b"\\ud83d" * n + b'"}}',
    "quotes alone": lambda n: b'"' * n,
    "brackets alone": lambda n: b"[" * n,
    "braces, unfinished": lambda n: b'{"a":' * n,
    "members": lambda n: MESSAGE + members(n) + b"}}",
    "members beside the known ones": lambda n: b'{"jsonrpc":"2.0","id":1,"method":"a",' + members(n) + b"}",
    "white space": lambda n: b" " * n + b"{}",
    "digits": lambda n: b'{"jsonrpc":"2.0","id":' + b"9" * n + b',"method":"a"}',
    "digits after the point": lambda n: b'{"jsonrpc":"2.0","id":1.' + b"9" * n + b',"method":"a"}',
    "an array of numbers": lambda n: b"[" + b"1," * n + b"1]",
    "pairs of brackets near the limit of depth": lambda n: b"[" * 199 + b"[]," * n + b"[]" + b"]" * 199,
    "strings that hold brackets": lambda n: b"[" + b'"[",' * n + b"[]]",
    "an array of objects": lambda n: b"[" + b"{}," * n + b"{}]",
    "an array of strings": lambda n: b"[" + b'"",' * n + b'""]',
    "no UTF-8": lambda n: b'{"a":"' + "é".encode() * n + b'\xff"}',
}
READERS: dict[str, Callable[[bytes], object]] = {
    "a message": parse_message,
    "a batch": parse_batch,
    "an object": parse_object,
    "its depth": lambda text: nests_deeper(text, 200),
    "its listing": lambda text: read_listing("a", Kind.TOOLS, [Raw(text)]),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("text", TEXTS)
def test_r78_reading_json_takes_no_longer_than_json_is_long(text: str, reader: str) -> None:
    assert grows_gently(READERS[reader], TEXTS[text](32_000), TEXTS[text](256_000))


@pytest.mark.parametrize("number", [MAX_MEMBERS + 1, 40_000])
@pytest.mark.parametrize("member", ["params", "result"])
def test_r78_an_object_with_too_many_members_is_refused(number: int, member: str) -> None:
    rest = b'"method":"a",' if member == "params" else b""
    text = b'{"jsonrpc":"2.0","id":7,%b"%b":{%b}}' % (rest, member.encode(), members(number))
    with pytest.raises(InvalidMessage) as refused:
        parse_message(text)
    assert refused.value.id == 7
    assert refused.value.reason == f'the member "{member}" has more than {MAX_MEMBERS} members'
    with pytest.raises(InvalidMessage, match=f"has more than {MAX_MEMBERS} members"):
        parse_object(b"{%b}" % members(number))


def test_r78_many_members_are_read_no_further_than_the_first_that_is_too_many() -> None:
    few, many = members(MAX_MEMBERS + 1), members(400_000)
    assert grows_gently(parse_object, b"{%b}" % few, b"{%b}" % many)


def test_as_many_members_as_are_read_are_read_however_long_they_are() -> None:
    inner = {f"b{index}": 1 for index in range(30_000)}
    text = bytes(raw({f"a{index}": 1 for index in range(MAX_MEMBERS - 1)} | {"last": inner}))
    assert len(parse_object(text)) == MAX_MEMBERS
    request = parse_message(b'{"jsonrpc":"2.0","id":1,"method":"a","params":%b}' % text)
    assert bytes(request.params["last"]) == bytes(raw(inner))  # type: ignore[union-attr]


@pytest.mark.parametrize("member", [b"1", b"{}", b'{"jsonrpc":"2.0","method":"a"}'])
@pytest.mark.parametrize("number", [MAX_BATCH + 1, 30_000])
def test_r78_a_batch_with_too_many_messages_is_refused(number: int, member: bytes) -> None:
    with pytest.raises(InvalidMessage, match=f"a batch of more than {MAX_BATCH} messages"):
        parse_batch(b"[" + b",".join([member] * number) + b"]")


def test_a_batch_of_few_large_messages_is_read() -> None:
    batch = parse_batch(b'[{"jsonrpc":"2.0","method":"a","params":{"a":[%b1]}}]' % (b"1," * 50_000))
    assert batch is not None
    assert len(batch) == 1


# Structured content of results over their limit


def in_fields(text: bytes, fields: int) -> bytes:
    return b"{" + b",".join(b'"a%d":%b' % (field, text) for field in range(fields)) + b"}"


CONTENTS: dict[str, Callable[[int], bytes]] = {
    "forty arrays of numbers": lambda n: in_fields(b"[" + b"1," * (n // 80) + b"1]", 40),
    "many arrays": lambda n: in_fields(b"[" + b'"aaaa",' * 50 + b"1]", n // 400),
    "many objects with arrays": lambda n: in_fields(in_fields(b"[" + b"1," * 20 + b"1]", 20), n // 1000),
    "arrays of objects with arrays": lambda n: in_fields(b"[" + b'{"b":[1,2,3]},' * (n // 800) + b"1]", 50),
    "rows that are larger than the room": lambda n: in_fields(
        b"[" + b'{"b":[%b1]},' % (b"1," * (n // 40)) * 20 + b"1]", 1
    ),
    "arrays within arrays": lambda n: in_fields(b"[" * 15 + b"1," * (n // 2) + b"1" + b"]" * 15, 1),
    "one string": lambda n: in_fields(b'["' + b"a" * n + b'"]', 1),
}


@pytest.mark.parametrize("content", CONTENTS)
def test_r78_structured_content_takes_no_longer_to_cut_than_it_is_long(content: str) -> None:
    def cut(text: bytes) -> None:
        for _ in shortened_arrays(Raw(text), None, 32_768):
            pass

    assert grows_gently(cut, CONTENTS[content](120_000), CONTENTS[content](960_000))


BLOCKS: dict[str, Callable[[int], list[object]]] = {
    "small texts": lambda n: [{"type": "text", "text": "a,"}] * (n // 30),
    "large texts": lambda n: [{"type": "text", "text": "a," * 1000}] * (n // 2000),
    "one text": lambda n: [{"type": "text", "text": "\n" * n}],
    "images": lambda n: [{"type": "image", "data": "AAAA", "mimeType": "image/png"}] * (n // 60),
    "no blocks": lambda n: [1] * (n // 20),
}


@pytest.mark.parametrize("part", [2, 20])
@pytest.mark.parametrize("kind", BLOCKS)
def test_r78_blocks_take_no_longer_to_cut_than_they_are_long(kind: str, part: int) -> None:
    def cut(content: Raw) -> None:
        limit = len(content) // part
        kept = KeptResults(KeptResultLimits(), Sealer(b"secret"), lambda: 0.0)
        for _ in Abridgement(kept, Origin(Caller(ANONYMOUS, LATEST)), limit).of({"content": content}, None):
            pass

    assert grows_gently(cut, raw(BLOCKS[kind](150_000)), raw(BLOCKS[kind](1_200_000)))


def test_r78_keeping_a_whole_takes_no_longer_where_many_are_kept() -> None:
    def keep(number: int) -> None:
        kept = KeptResults(KeptResultLimits(max_bytes_per_principal=number * 800), Sealer(b"secret"), lambda: 0.0)
        for _ in range(number):
            kept.keep(Origin(Caller(ANONYMOUS, LATEST)), b"a" * 1000, "text/plain")

    assert grows_gently(keep, 1000, 8000)


# Everything else that looks at what a peer wrote

LAYOUT: Final[Layout] = layouts(
    settings_of({"a": {"prefix": "a", "resources": {"exclude": ["*b*b*c"]}}}).upstreams, 64
)[""]
REWRITER: Final = Rewriter(LAYOUT.spaces[0].expose_uri)
VIEW: Final = View(LAYOUT, dict.fromkeys(Kind, ()), {})
REDACTION: Final = Redaction(tuple(f"secret-{index:020}" for index in range(20)))
LOGGED: Final = redacting(REDACTION.secrets)
POLICY: Final = Policy(
    PolicySettings.model_validate(
        {"roles": {"everyone": {"allow": [{"resources": ["x://*a*b*c/*"]}, {"tools": ["*a*a*a*b"]}]}}}
    ),
    readings=readings,
    matcher=matcher,
)
CLEAN: Final = cleaning(REDACTION.secrets)
VISITS: Final = Visits(Sealer(b"secret"))


def rewritten(shape: Shape) -> Callable[[str], object]:
    member = {Shape.CONTENT: "content", Shape.CONTENTS: "contents", Shape.MESSAGES: "messages"}[shape]
    return lambda text: REWRITER.outcome(shape, Complete({member: raw([{"type": "resource", "uri": text}, text])}))


def headers_of(text: str) -> object:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "x-mcp-header": "A"}, "b": {"enum": list(text[::8])}},
    }
    return parameter_headers(mirrored_parameters(raw(schema)), raw({"a": text}))


def allowed(kind: Kind) -> Callable[[str], object]:
    return lambda text: POLICY.decide(POLICY.roles_of(ANONYMOUS), PolicyItem("a", kind, text), {})


READ: Final[dict[str, Callable[[str], object]]] = {
    "the audit": CLEAN,
    "the log": lambda text: LOGGED(None, "", {"event": text, "more": [text]}),
    "redaction of texts": REDACTION,
    "redaction of JSON": lambda text: REDACTION.in_json(raw([text, text])),
    "rewriting of content": rewritten(Shape.CONTENT),
    "rewriting of contents": rewritten(Shape.CONTENTS),
    "rewriting of messages": rewritten(Shape.MESSAGES),
    "readings of URIs": readings,
    "flaws of URIs": uri_flaw,
    "URIs in views": VIEW.resource,
    "canonical URIs": canonical,
    "the policy on tools": allowed(Kind.TOOLS),
    "the policy on URIs": allowed(Kind.RESOURCES),
    "names": lambda text: name_table(LAYOUT.spaces[0], Kind.TOOLS, [text, text + "b"]),
    "header values": decode_value,
    "cookies": lambda text: VISITS.session(f'mcproxy-login="{text}"; {text}', is_secure=False),
    "mirrored parameters": headers_of,
    "content": lambda text: contents_fault(Content(), {"contents": raw([{"uri": "a:b", "blob": text}])}),
    "event streams": lambda text: EventDecoder(1 << 30).feed(text.encode()),
    "event streams in pieces": lambda text: _fed_in_pieces(text.encode()),
}
PUMPS: Final = [
    "a", " ", "/", "//", "../", "%25", "%2e%2e/", "\\", "\uff0e/", ";", "?", "?a=", "&=", "://", "@", "a@", "#", "\n",
    "\r", "\n\n", "data: a\n", "data:\n\n", "eyJ", "eyJ.", "mcp", "sk-", "Bearer ", "-----BEGIN ", "-----BEGIN A",
    "AKIA", "=?base64?", "\u2028", "é", "secret-", '"', "\\u00", "b", "ab", "*", "[", "{",
]  # fmt: skip
"""What texts repeat."""


def _fed_in_pieces(data: bytes) -> None:
    decoder = EventDecoder(1 << 30)
    for at in range(0, len(data), 64):
        decoder.feed(data[at : at + 64])


@pytest.mark.parametrize("pump", ['a="b" ', "a,", 'x="\\', "Bearer ", "= ", "a=b,", "Bearer a"])
def test_r78_a_challenge_takes_no_longer_to_read_than_it_is_long(pump: str) -> None:
    small, large = ((pump * MAX_HEADER)[:size] for size in (MAX_HEADER // 8, MAX_HEADER))
    assert grows_gently(bearer_challenge, small, large)


@pytest.mark.parametrize("reader", READ)
def test_r78_no_text_takes_longer_to_look_at_than_it_is_long(reader: str) -> None:
    work = READ[reader]
    for pump in PUMPS:
        small, large = (pump * (size // len(pump)) for size in (5_000, 40_000))
        assert grows_gently(work, small, large), pump


@pytest.mark.parametrize("size", [MAX_READ // 8])
def test_r78_what_the_audit_looks_at_is_cut_before_it_looks_and_takes_little_even_so(size: int) -> None:
    for pump in PUMPS:
        # The texts differ: what was cleaned before is remembered.
        marks = iter(range(1000))
        assert grows_gently(
            lambda text, marks=marks: CLEAN(f"{next(marks)}{text}"),  # type: ignore[misc]
            pump * (size // len(pump)),
            pump * (8 * size // len(pump)),
        ), pump


# Schemas that settings change


def with_many_properties(number: int) -> Raw:
    names = [f"a{index}" for index in range(number)]
    return raw({"properties": dict.fromkeys(names, True), "required": ["a1"], "dependentRequired": {"a1": names[2:]}})


def test_r78_a_schema_that_settings_change_takes_no_longer_than_it_is_long() -> None:
    hidden = {"a0": ArgumentOverride(hide=True)}
    small, large = with_many_properties(1000), with_many_properties(8000)
    assert grows_gently(lambda schema: overridden({"inputSchema": schema}, hidden), small, large)


# Every regular expression of the package


def patterns() -> Iterator[tuple[str, re.Pattern[Any], set[str]]]:
    """Those that modules hold by a name, and the methods that they are used with there."""
    for module in pkgutil.walk_packages(mcproxy.__path__, "mcproxy."):
        if module.name.endswith("__main__"):
            continue
        loaded = importlib.import_module(module.name)
        found = {name: value for name, value in vars(loaded).items() if isinstance(value, re.Pattern)}
        if not found:
            continue
        used: dict[str, set[str]] = {}
        for node in ast.walk(ast.parse(inspect.getsource(loaded))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.setdefault(node.value.id, set()).add(node.attr)
        yield from ((f"{module.name}.{name}", value, used[name]) for name, value in found.items() if name in used)


def pumped(pattern: str) -> Iterator[str]:
    """Texts to repeat against a pattern: what stands in it, in pieces."""
    plain = re.sub(r"\\[a-zA-Z]|[^A-Za-z0-9 @=:/.%_\-\"<>&?#;\\,{}\[\]]", " ", pattern)
    words = {word for word in re.split(r"[ \[\](){}|]+", plain) if word}
    for word in {*words, *plain, "a", "0", " ", "\t", "a0", '"', "\\", "\\u", "%2", ".", "-"} - {""}:
        yield word[:12]


@pytest.mark.parametrize(("name", "pattern", "methods"), [pytest.param(*each, id=each[0]) for each in patterns()])
def test_r78_no_regular_expression_takes_time_that_grows_with_the_square(
    name: str, pattern: re.Pattern[Any], methods: set[str]
) -> None:
    is_text = isinstance(pattern.pattern, str)
    source = pattern.pattern if is_text else pattern.pattern.decode("latin-1")

    def run(text: str) -> object:
        given = text if is_text else text.encode("latin-1", "replace")
        return pattern.match(given) if anchored else pattern.sub(lambda match: match[0], given)

    anchored = not methods & {"search", "finditer", "findall", "sub", "subn", "split"}
    head = source[: len(source) - len(source.lstrip("abcdefghijklmnopqrstuvwxyz"))]
    for pump in pumped(source):
        for prefix in {"", head}:
            small, large = (prefix + pump * (size // len(pump)) + "\0" for size in (1_000, 8_000))
            assert grows_gently(run, small, large), (name, pump)
