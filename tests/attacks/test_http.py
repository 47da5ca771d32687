"""HTTP that two readers may take for two things, that is too much, or that does not end."""

from __future__ import annotations

import gzip
import json
import re
import time
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.abc import SocketStream

from tests.attacks.wire import INITIALIZE, answer, code, connected, post, said, status, until_closed
from tests.fakes.gateway import FakeGateway, quick, served
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

SECOND = b"GET /second HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked"
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'

AMBIGUOUS = {
    "two lengths that are equal": post(INITIALIZE, b"Content-Length: %d" % len(INITIALIZE)),
    "two lengths": post(INITIALIZE, b"Content-Length: 3"),
    "a length and chunks": post(b"0\r\n\r\n" + SECOND, CHUNKED),
    "a list of lengths": post(INITIALIZE, b"Content-Length: 3, 3", length=False),
    "a signed length": post(INITIALIZE, b"Content-Length: +%d" % len(INITIALIZE), length=False),
    "a negative length": post(INITIALIZE, b"Content-Length: -1", length=False),
    "a length of many digits": post(INITIALIZE, b"Content-Length: " + b"9" * 30, length=False),
    "a length of thousands of digits": post(INITIALIZE, b"Content-Length: %05000d" % len(INITIALIZE), length=False),
    "an unknown coding": post(b"0\r\n\r\n", b"Transfer-Encoding: xchunked", length=False),
    "chunks that are not the last coding": post(b"0\r\n\r\n", CHUNKED + b", identity", length=False),
    "two codings": post(b"0\r\n\r\n", CHUNKED, b"Transfer-Encoding: identity", length=False),
    "a space before a colon": post(b"0\r\n\r\n", b"Transfer-Encoding : chunked", length=False),
    "a header that is folded": post(INITIALIZE, b"X-A: a\r\n b"),
    "a line feed alone": post(INITIALIZE, b"X-A: a\nX-B: b"),
    "a carriage return alone": post(INITIALIZE, b"X-A: a\rX-B: b"),
    "line feeds throughout": post(INITIALIZE).replace(b"\r\n", b"\n"),
    "a nul": post(INITIALIZE, b"X-A: a\0b"),
    "chunks in HTTP/1.0": post(b"0\r\n\r\n", CHUNKED, length=False).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "no host": post(INITIALIZE, host=b""),
    "two hosts": post(INITIALIZE, b"Host: evil.example"),
    "a signed chunk": post(b"-1\r\na\r\n0\r\n\r\n", CHUNKED, length=False),
    "a chunk in C": post(b"0x5\r\nabcde\r\n0\r\n\r\n", CHUNKED, length=False),
    "a chunk of more than there is": post(b"f" * 20 + b"\r\na\r\n0\r\n\r\n", CHUNKED, length=False),
    "chunks with line feeds alone": post(b"5\nabcde\n0\n\n", CHUNKED, length=False),
    "another protocol's greeting": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a version that there is not": post(INITIALIZE).replace(b"HTTP/1.1", b"HTTP/3.7"),
}


@pytest.mark.parametrize("request_", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_what_two_readers_may_take_for_two_things_is_refused_and_the_connection_ends(request_: bytes) -> None:
    async with served() as gateway:
        with anyio.fail_after(GUARD):
            async with await connected(gateway.url) as stream:
                await stream.send(request_ + SECOND)
                received = await until_closed(stream)
        assert code(received) == 400
        assert len(re.findall(rb"HTTP/1\.[01] \d{3} ", received)) == 1
        assert gateway.gateway.calls == []


@pytest.mark.parametrize(
    ("host", "target"),
    [
        (b"Host: localhost", b"http://evil.example/other"),
        (b"Host: evil.example", b"http://localhost/mcp"),
        (b"Host: localhost@evil.example", b"/mcp"),
        (b"Host: evil.example#localhost", b"/mcp"),
        (b"Host: localhost.evil.example", b"/mcp"),
        (b"Host: localhost", b"//evil.example/mcp"),
        (b"Host: localhost", b"/mcp/../servers/up/mcp"),
        (b"Host: localhost", b"/servers/up%2fmcp"),
    ],
)
async def test_r42_an_absolute_target_or_another_spelling_of_a_path_leads_nowhere(host: bytes, target: bytes) -> None:
    async with served() as gateway:
        with anyio.fail_after(GUARD):
            assert code(await answer(gateway.url, post(host=host, target=target))) in {400, 404, 421}
        assert gateway.gateway.calls == []


@pytest.mark.parametrize("origin", [b"null", b"http://evil.example", b"http://localhost.evil.example", b"file://"])
async def test_r57_a_foreign_origin_is_refused_in_a_preflight_and_gets_no_header(origin: bytes) -> None:
    preflight = b"OPTIONS /mcp HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Method: POST\r\nOrigin: " + origin
    async with served() as gateway:
        with anyio.fail_after(GUARD):
            for request in (preflight + b"\r\n\r\n", post(INITIALIZE, b"Origin: " + origin)):
                received = await answer(gateway.url, request)
                assert code(received) == 403
                assert b"Access-Control-Allow" not in received
        assert gateway.gateway.calls == []


async def test_r57_no_origin_is_ever_given_credentials() -> None:
    async with served() as gateway:
        with anyio.fail_after(GUARD):
            received = await answer(gateway.url, post(INITIALIZE, b"Origin: http://localhost:1"))
        assert b"Access-Control-Allow-Origin: http://localhost:1\r\n" in received
        assert b"Access-Control-Allow-Credentials" not in received


async def test_a_header_that_is_sent_back_begins_no_line_of_its_own() -> None:
    names = b"mcp-param-a, mcp-param-\xff, mcp-param-b%0d%0aset-cookie: a=b"
    preflight = (
        b"OPTIONS /mcp HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
        b"Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: " + names + b"\r\n\r\n"
    )
    async with served() as gateway:
        with anyio.fail_after(GUARD):
            received = await answer(gateway.url, preflight)
        assert code(received) == 204
        assert b"\r\nset-cookie" not in received.lower()


TOO_MUCH = {
    "a header": (post(INITIALIZE, b"X-A: " + b"a" * 100_000), 431),
    "a header's name": (post(INITIALIZE, b"X" * 100_000 + b": a"), 431),
    "headers": (post(INITIALIZE, *(b"X-%d: a" % number for number in range(20_000))), 431),
    "trailers": (post(b"0\r\n" + b"X-A: a\r\n" * 5000 + b"\r\n", CHUNKED, length=False), 400),
    "a target": (post(INITIALIZE, target=b"/mcp?" + b"a" * 100_000), 431),
    "a body": (post(b" " * 2000), 413),
    "chunks": (post(b"1\r\n \r\n" * 2000 + b"0\r\n\r\n", CHUNKED, length=False), 413),
    "a body, once it is unpacked": (post(gzip.compress(b" " * 50_000_000), b"Content-Encoding: gzip"), 415),
    "nesting": (post(b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + b"[" * 600), 400),
    "digits in an id": (post(b'{"jsonrpc":"2.0","method":"ping","id":' + b"9" * 900 + b"}"), 400),
}


@pytest.mark.parametrize(("request_", "expected"), TOO_MUCH.values(), ids=TOO_MUCH.keys())
async def test_too_much_of_anything_is_refused(request_: bytes, expected: int) -> None:
    async with served(proxy=quick(limits={"max_body_bytes": 1000})) as gateway:  # type: ignore[arg-type]  # it validates
        with anyio.fail_after(GUARD):
            async with await connected(gateway.url) as stream:
                await stream.send(request_)
                assert await status(stream) == expected
        assert gateway.gateway.calls == []


async def test_keys_that_are_meant_to_collide_are_read_in_no_time() -> None:
    # The low bits of these collide in any table of a power of two, were texts not hashed under a key of the process.
    members = ",".join(f'"{number << 40}": 0' for number in range(100_000))
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{%s}}' % members.encode()
    async with served() as gateway:
        before = time.thread_time()
        assert code(await answer(gateway.url, post(body, b"Mcp-Session-Id: x"))) == 400
        assert time.thread_time() - before < 5


async def test_pipelined_requests_are_not_read_without_end() -> None:
    """A client that asks on and on and reads nothing is hung up on."""
    async with served(proxy=quick(write_timeout=3600)) as gateway:
        parts = urlsplit(gateway.url)
        async with await anyio.connect_tcp(str(parts.hostname), parts.port or 0) as stream:
            with anyio.fail_after(GUARD), pytest.raises(anyio.BrokenResourceError):
                await ask_without_end(stream)


async def ask_without_end(stream: SocketStream) -> None:
    while True:
        await stream.send(SECOND * 200)


@pytest.mark.parametrize(
    "beginning",
    [b"", b"\r\n", b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"],
    ids=["nothing", "empty lines", "a head"],
)
async def test_r8_a_head_that_comes_by_drops_has_a_deadline(beginning: bytes) -> None:
    async with served(proxy=quick(connection_idle=0.3)) as gateway:
        with anyio.fail_after(GUARD):
            async with await connected(gateway.url) as stream, anyio.create_task_group() as tasks:

                async def drip() -> None:
                    try:
                        while True:
                            await stream.send(beginning and (beginning if beginning == b"\r\n" else b"X-A: a\r\n"))
                            await anyio.sleep(0.05)
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        return

                await stream.send(beginning)
                tasks.start_soon(drip)
                assert await until_closed(stream) == b""
                tasks.cancel_scope.cancel()


async def test_r8_a_head_that_does_not_end_is_answered_with_the_setting_that_bounds_it() -> None:
    async with served(proxy=quick(limits={"head_timeout": 0.05})) as gateway:  # type: ignore[arg-type]  # it validates
        with anyio.fail_after(GUARD):
            async with await connected(gateway.url) as stream:
                await stream.send(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n")
                received = await until_closed(stream)
    assert code(received) == 408
    assert "limits.head_timeout" in said(received)["error"]["message"]


async def test_r8_a_body_that_comes_by_drops_has_a_deadline() -> None:
    async with served(proxy=quick(read_timeout=0.3)) as gateway:
        with anyio.fail_after(GUARD):
            async with await connected(gateway.url) as stream, anyio.create_task_group() as tasks:

                async def drip() -> None:
                    try:
                        while True:
                            await stream.send(b" ")
                            await anyio.sleep(0.05)
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        return

                await stream.send(post(b"", b"Content-Length: 1000", length=False))
                tasks.start_soon(drip)
                assert await status(stream) == 408
                tasks.cancel_scope.cancel()


async def test_a_result_that_holds_line_breaks_is_one_event_all_the_same() -> None:
    """What an upstream writes between its tokens ends no event, and so begins no message of its own."""
    upstream = FakeGateway()
    async with served(upstream) as gateway:
        forged = {"text": "a\r\n\r\ndata: {}\n\nevent: evil\u2028id: 1\x85"}
        call = {
            "jsonrpc": "2.0",
            "id": "1\n\ndata: x",
            "method": "tools/call",
            "params": {"name": "echo", "arguments": forged, "_meta": _META},
        }
        fields = [b"Accept: text/event-stream", b"MCP-Protocol-Version: 2026-07-28"]
        fields += [b"Mcp-Method: tools/call", b"Mcp-Name: echo"]
        with anyio.fail_after(GUARD):
            received = await answer(gateway.url, post(json.dumps(call, indent=1).encode(), *fields))
        assert code(received) == 200
        lines = received.partition(b"\r\n\r\n")[2].splitlines()
        assert len([line for line in lines if line.startswith(b"data:")]) == 1
        assert not any(line.startswith((b"event:", b"id:")) for line in lines)


async def test_an_error_that_quotes_its_request_is_json_all_the_same() -> None:
    async with served() as gateway:
        with anyio.fail_after(GUARD):
            received = await answer(gateway.url, post(PING, kind=b'text/"\xff;<script>'))
        assert code(received) == 415
        assert "Content-Type" in said(received)["error"]["message"]
        assert b"Content-Type: application/json" in received


_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "a", "version": "1"},
}
