"""The twin of `mcproxy.http.client.pool`: connections to a server that does as it is told."""

from __future__ import annotations

import asyncio
import datetime
import gc
import ipaddress
import socket
import ssl
import struct
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread, current_thread, stack_size
from typing import NoReturn

import anyio
import pytest
from anyio.abc import ByteStream
from anyio.streams.tls import TLSListener
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from yarl import URL

from mcproxy.http.client import ConnectFailed, ConnectionBroken
from mcproxy.http.client.heads import write_head
from mcproxy.http.client.pool import LOOK_UPS, Pool
from mcproxy.telemetry.logs import about
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio

SOCKETS = Path("/proc/net/tcp")
"""One socket a line; the sixth word is its timer, and when that is due in hundredths of a second (proc_net_tcp.txt)."""
KEEPALIVE_TIMER = "02"

NO_STACK = 2**47
"""Bytes that no thread's stack can have: none can be started, as where a process has as many as it may."""

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"

Part = Callable[[ByteStream], Awaitable[None]]
"""What the server does on one connection; then it hangs up."""


class Server:
    """Plays one part for each connection, the last one again and again."""

    def __init__(self, *parts: Part) -> None:
        self.connections = 0
        self.ended = anyio.Event()
        """Set whenever a connection is over."""
        self.open = 0
        self._all_ended = anyio.Event()
        self._parts = parts

    async def __call__(self, stream: ByteStream) -> None:
        part = self._parts[min(self.connections, len(self._parts) - 1)]
        self.connections += 1
        self.open += 1
        self._all_ended = anyio.Event()
        async with stream:
            try:
                await part(stream)
            except (anyio.EndOfStream, anyio.BrokenResourceError, ssl.SSLError):
                return
            finally:
                self.ended.set()
                self.open -= 1
                if not self.open:
                    self._all_ended.set()

    async def all_ended(self) -> None:
        """Returns once no connection is open."""
        while self.open:
            await self._all_ended.wait()


async def heard(stream: ByteStream) -> bytes:
    """One request, which has no body."""
    request = b""
    while not request.endswith(b"\r\n\r\n"):
        request += await stream.receive()
    return request


async def answering(stream: ByteStream) -> None:
    while True:
        await heard(stream)
        await stream.send(WHOLE)


async def answering_once(stream: ByteStream) -> None:
    await heard(stream)
    await stream.send(WHOLE)


async def hanging_up_on_the_second(stream: ByteStream) -> None:
    await answering_once(stream)
    await heard(stream)


@asynccontextmanager
async def serving(server: Server, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[URL]:
    listener = await anyio.create_tcp_listener(local_host=host)
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon((TLSListener(listener, tls) if tls is not None else listener).serve, server)
        yield URL.build(scheme="https" if tls is not None else "http", host=host, port=port, path="/mcp")
        tasks.cancel_scope.cancel()


async def ask(pool: Pool, url: URL, method: str = "POST") -> bytes:
    with anyio.fail_after(GUARD):
        answer = await pool.request(method, url, write_head(method, url, {}))
        body = await answer.read(100)
    answer.release()
    return body


async def test_a_connection_serves_one_request_after_another() -> None:
    server = Server(answering)
    async with serving(server) as url:
        with closing(Pool(GUARD, 10)) as pool:
            assert [await ask(pool, url) for _ in range(3)] == [b"hello"] * 3
    assert server.connections == 1


async def test_a_server_that_closes_each_connection_loses_no_request_once_that_was_seen() -> None:
    server = Server(answering_once)
    async with serving(server) as url:
        with closing(Pool(GUARD, 10)) as pool:
            assert await ask(pool, url) == b"hello"
            with anyio.fail_after(GUARD):
                while pool.open:  # it closes the connection without having said so
                    await anyio.lowlevel.checkpoint()
            assert [await ask(pool, url) for _ in range(20)] == [b"hello"] * 20
    assert server.connections == 21


async def test_requests_at_once_have_a_connection_each_and_as_many_are_kept_as_may_be() -> None:
    server = Server(answering)
    async with serving(server) as url:
        with closing(Pool(GUARD, 1)) as pool:
            async with anyio.create_task_group() as asking:
                for _ in range(2):
                    asking.start_soon(ask, pool, url)
            with anyio.fail_after(GUARD):
                await server.ended.wait()
            await ask(pool, url)
    assert server.connections == 2


async def test_r1_names_whose_servers_do_not_answer_hold_up_no_other_and_can_be_given_up() -> None:
    may_answer, asked = Event(), anyio.Semaphore(0)
    loop = asyncio.get_running_loop()

    def look_up(*_: object, **__: object) -> NoReturn:
        loop.call_soon_threadsafe(asked.release)
        may_answer.wait(GUARD)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    async with serving(Server(answering)) as url, anyio.create_task_group() as tasks:
        with closing(Pool(GUARD, 10, look_up=look_up)) as stuck, closing(Pool(GUARD, 10)) as pool:
            for _ in range(2 * LOOK_UPS):
                tasks.start_soon(ask, stuck, URL("http://silent.example/mcp"))
            with anyio.fail_after(GUARD):
                for _ in range(LOOK_UPS):
                    await asked.acquire()
            assert await ask(pool, url.with_host("localhost")) == b"hello"
            assert await ask(stuck, url) == b"hello", "an address is looked up nowhere"
            assert not may_answer.is_set()
            tasks.cancel_scope.cancel()
    may_answer.set()


async def test_r1_a_name_that_is_looked_up_for_nobody_any_more_has_its_place_until_it_is_answered() -> None:
    may_answer, asked = Event(), anyio.Semaphore(0)
    threads: list[Thread] = []
    loop = asyncio.get_running_loop()

    def look_up(*_: object, **__: object) -> NoReturn:
        threads.append(current_thread())
        loop.call_soon_threadsafe(asked.release)
        may_answer.wait(GUARD)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    silent = URL("http://silent.example/mcp")
    with closing(Pool(GUARD, 10, look_up=look_up)) as pool:
        async with anyio.create_task_group() as tasks:
            for _ in range(LOOK_UPS):
                tasks.start_soon(ask, pool, silent)
            with anyio.fail_after(GUARD):
                for _ in range(LOOK_UPS):
                    await asked.acquire()
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, pool, silent)
            await anyio.wait_all_tasks_blocked()
            assert len(threads) == LOOK_UPS
            assert all(thread.daemon for thread in threads), "a process that ends waits for none of them"
            tasks.cancel_scope.cancel()
        may_answer.set()
        with pytest.raises(ConnectFailed), anyio.fail_after(GUARD):
            await ask(pool, silent)


async def test_r1_where_no_thread_can_be_started_nothing_was_sent() -> None:
    before = stack_size(NO_STACK)
    try:
        with closing(Pool(GUARD, 10)) as pool:
            for _ in range(2 * LOOK_UPS):
                with pytest.raises(ConnectFailed), anyio.fail_after(GUARD):
                    await ask(pool, URL("http://localhost/mcp"))
    finally:
        stack_size(before)


async def test_an_idle_connection_is_closed_after_a_while() -> None:
    server = Server(answering)
    async with serving(server) as url:
        with closing(Pool(GUARD, 10, keep_alive=0.01)) as pool:
            await ask(pool, url)
            with anyio.fail_after(GUARD):
                await server.ended.wait()
            await ask(pool, url)
    assert server.connections == 2


async def saying_how_long_it_waits(stream: ByteStream) -> None:
    while True:
        await heard(stream)
        await stream.send(WHOLE.replace(b"Content", b"Keep-Alive: timeout=0\r\nContent"))


async def test_r4_a_connection_that_its_server_is_about_to_close_is_not_used_again() -> None:
    server = Server(saying_how_long_it_waits)
    async with serving(server) as url:
        with closing(Pool(GUARD, 10)) as pool:
            assert [await ask(pool, url) for _ in range(2)] == [b"hello"] * 2
    assert server.connections == 2


async def test_r4_a_post_on_a_connection_that_was_closed_meanwhile_is_not_sent_again() -> None:
    server = Server(hanging_up_on_the_second, answering)
    async with serving(server) as url:
        with closing(Pool(GUARD, 10)) as pool:
            await ask(pool, url)
            with pytest.raises(ConnectionBroken) as broken:
                await ask(pool, url)
            assert broken.value.is_unanswered
            assert server.connections == 1
            assert await ask(pool, url) == b"hello"


async def test_a_get_on_a_connection_that_was_closed_meanwhile_is_sent_on_another() -> None:
    server = Server(hanging_up_on_the_second, answering)
    async with serving(server) as url:
        with closing(Pool(GUARD, 10)) as pool:
            await ask(pool, url)
            assert await ask(pool, url, "GET") == b"hello"
    assert server.connections == 2


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    server = Server(answering_once, answering)
    async with serving(server) as url:
        with closing(Pool(GUARD, 10)) as pool:
            await ask(pool, url)
            with anyio.fail_after(GUARD):
                await server.ended.wait()
                while pool.idle:
                    await anyio.lowlevel.checkpoint()
            assert await ask(pool, url) == b"hello"


@pytest.mark.skipif(not SOCKETS.exists(), reason="the timers of sockets are told by Linux")
async def test_r21_the_system_asks_after_a_server_that_is_silent() -> None:
    connections: list[tuple[int, int]] = []

    async def silent(stream: ByteStream) -> None:
        ports = anyio.abc.SocketAttribute
        connections.append((stream.extra(ports.remote_port), stream.extra(ports.local_port)))
        await heard(stream)
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        await stream.receive()

    server = Server(silent)
    async with serving(server) as url:
        with closing(Pool(GUARD, 10)) as pool, anyio.fail_after(GUARD):
            answer = await pool.request("GET", url, write_head("GET", url, {}))
            kind, due = timer_of(*connections[0])
            answer.close()
    assert (kind, 0 < due <= 60) == (KEEPALIVE_TIMER, True)


def timer_of(local: int, remote: int) -> tuple[str, float]:
    """The kind of the timer of a socket with these ports, and the seconds until it is due."""
    rows = [row.split() for row in SOCKETS.read_text().splitlines()[1:]]
    ends = [f":{port:04X}" for port in (local, remote)]
    kind, _, due = next(row[5] for row in rows if [row[1][-5:], row[2][-5:]] == ends).partition(":")
    return kind, int(due, 16) / 100


async def test_closing_the_pool_ends_what_is_under_way() -> None:
    server = Server(heard_and_silent)
    async with serving(server) as url:
        with closing(Pool(GUARD, 10)) as pool:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_fails, pool, url)
                with anyio.fail_after(GUARD):
                    while not server.connections:
                        await anyio.lowlevel.checkpoint()
                pool.close()
        with anyio.fail_after(GUARD):
            await server.ended.wait()


async def heard_and_silent(stream: ByteStream) -> None:
    await heard(stream)
    await stream.receive()


async def _fails(pool: Pool, url: URL) -> None:
    with pytest.raises((ConnectionBroken, ConnectFailed)):
        await ask(pool, url)


async def test_a_refused_connection_is_reported_in_the_systems_words() -> None:
    async with serving(Server(answering)) as url:
        pass
    with closing(Pool(GUARD, 10)) as pool, pytest.raises(ConnectFailed) as unreached:
        await ask(pool, url)
    assert isinstance(unreached.value.__cause__, ConnectionRefusedError)


@contextmanager
def resetting() -> Iterator[URL]:
    """A server in a thread that resets each connection as soon as it is made."""
    linger = struct.pack("ii", 1, 0)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    made, _ = listener.accept()
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    made.close()

        thread = Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield URL.build(scheme="http", host="127.0.0.1", port=listener.getsockname()[1], path="/mcp")
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(GUARD)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": use}) for use in (False, True)])
async def test_a_connection_that_is_reset_at_once_is_none_and_nothing_is_kept_of_it() -> None:
    """On a loop so slow that the reset is there before the request, among others."""

    loop = asyncio.get_running_loop()
    ended: list[bool] = []

    def dawdle() -> None:
        time.sleep(0.002)
        if not ended:
            loop.call_soon(dawdle)

    dawdle()
    with resetting() as url, closing(Pool(GUARD, 10)) as pool:
        for _ in range(50):
            await _fails(pool, url)
        ended.append(True)
        assert (pool.idle, pool.open) == (0, 0)


async def test_a_request_that_is_cancelled_at_any_moment_leaves_no_connection_open() -> None:
    server = Server(answering)
    async with serving(server) as url:
        with closing(Pool(GUARD, 10)) as pool:
            for moments in range(60):
                asking = asyncio.create_task(ask(pool, url))
                for _ in range(moments):
                    await asyncio.sleep(0)
                asking.cancel()
                await asyncio.wait([asking])
                pool.close()
            with anyio.fail_after(GUARD):
                await server.all_ended()


async def test_r46_connecting_takes_no_longer_than_it_may() -> None:
    async def deaf(stream: ByteStream) -> None:
        await stream.receive()
        await anyio.sleep_forever()

    async with serving(Server(deaf)) as url:
        with closing(Pool(0.05, 10)) as pool, pytest.raises(ConnectFailed) as unreached:
            await ask(pool, url.with_scheme("https"))
    assert isinstance(unreached.value.__cause__, TimeoutError)


async def test_a_server_that_has_but_an_ipv6_address_is_reached() -> None:
    server = Server(answering)
    async with serving(server, "::1") as url:
        with closing(Pool(GUARD, 10)) as pool:
            assert await ask(pool, url) == b"hello"


async def test_tls_is_spoken_with_the_host_that_the_certificate_names_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = _certified(tmp_path, "localhost", "::1")
    server = Server(answering)
    async with serving(server, tls=context) as url:
        with closing(Pool(GUARD, 10)) as pool, pytest.raises(ConnectFailed) as unknown:
            await ask(pool, url.with_host("localhost"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        with closing(Pool(GUARD, 10)) as pool:
            assert await ask(pool, url.with_host("localhost")) == b"hello"
            with pytest.raises(ConnectFailed) as other:
                await ask(pool, url)
    for refused in (unknown, other):
        assert isinstance(refused.value.__cause__, ssl.SSLCertVerificationError)


def _certified(folder: Path, name: str, address: str) -> ssl.SSLContext:
    """A server's side of TLS, with a certificate of its own making in `folder`."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ipaddress.ip_address(address))])
    certificate = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


async def test_a_connection_holds_nothing_of_the_call_that_it_was_made_for() -> None:
    async with serving(Server(answering)) as url:
        with closing(Pool(GUARD, 10)) as pool, anyio.fail_after(GUARD):
            call = Server()
            token = about.set(partial(dict[str, object], request=call))
            answer = await pool.request("GET", url, write_head("GET", url, {}))
            about.reset(token)
            assert await answer.read(100) == b"hello"
            held = weakref.ref(call)
            del call, token
            gc.collect()
            assert pool.idle == 1
            assert held() is None
