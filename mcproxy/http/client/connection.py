"""One connection to a server, which carries one exchange at a time: a request, written at once, and its answer.

It is free again when all of an answer has come, read or not. A server that says more than it was asked is hung up
on, and so is one whose answer is given up. Retries nothing, and knows no time-out: to stop waiting, cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools

from mcproxy.http.client.head_cache import HeadCache
from mcproxy.http.client.headers import NOTHING_YET, read_head
from mcproxy.http.client.response import Broken, ClientResponse

MAX_HEAD: Final = 64 * 1024
"""Bytes that may come on end and be no body: heads, those of interim responses, trailers, and what parts chunks."""
LAST_MOMENT: Final = 1.0
"""Seconds in which an answer that nobody reads any more must end, for its connection to serve again."""


class ClientConnection(asyncio.Protocol):
    """`when_free` hears that it can carry another exchange; `when_lost`, once, that it never will again.

    The latter hears too whether the server hung up without a word on what it was asked. `recognition` is of that
    server.
    """

    def __init__(
        self,
        when_free: Callable[[ClientConnection], None],
        when_lost: Callable[[ClientConnection, bool], None],
        recognition: HeadCache | None = None,
    ) -> None:
        self._when_free = when_free
        self._when_lost = when_lost
        self._recognition = recognition or HeadCache()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._answer: ClientResponse | None = None
        self._heard = False
        self._lost = False
        self._paused = False
        self._fault: str | None = None
        self._last_moment: asyncio.TimerHandle | None = None
        self._reason = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._since_body = 0
        self._interim = False

    async def exchange(self, request: bytes) -> ClientResponse:
        """Sends a request and waits for the head of its answer. Cancelled, it ends the connection. Raises Broken."""
        assert self._answer is None, "one exchange at a time"
        self._answer = answer = ClientResponse(self, self._loop)
        self._heard, self._since_body = False, 0
        self._transport.write(request)
        try:
            while answer.head is NOTHING_YET:
                await answer.stirred()
        except BaseException:
            # Of an answer that is whole it is free already, and may be at the next.
            answer.close()
            raise
        return answer

    def release(self, answer: ClientResponse) -> None:
        if self._lost or answer is not self._answer:
            return
        if self._last_moment is None:
            answer.drop()
            self.resume()
            self._last_moment = self._loop.call_later(LAST_MOMENT, self.abort)

    def abort(self) -> None:
        """Ends the connection at once, and with it what is under way on it."""
        self._transport.abort()
        self._lose("it was given up")

    def close(self) -> None:
        """Ends an idle connection, with a goodbye where it has TLS."""
        self._transport.close()
        self._lose("it was closed")

    def pause(self) -> None:
        if not (self._paused or self._lost):
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self._lost:
            self._paused = False
            self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses of it

    def data_received(self, data: bytes) -> None:
        if self._lost:
            return
        answer, is_first, self._heard = self._answer, not self._heard, True
        # The parser stands between two answers here, and still does after one of which it has seen nothing.
        if is_first and answer is not None:
            known = self._recognition.recognised(data)
            if known is not None:
                answer.give(*known)
                self._free()
                return
        self._parse(data)
        if self._fault is not None:
            self._transport.abort()
            self._lose(self._fault)
        elif answer is not None and answer.whole and not self._lost:
            if is_first:
                self._recognition.remember(answer.head, data)
            self._free()

    def _parse(self, data: bytes) -> None:
        self._since_body += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._blame("it switches to a protocol that nobody asked for")
        except httptools.HttpParserError as error:
            self._blame(f"what it says is not HTTP: {error}")
        if self._since_body > MAX_HEAD:
            self._blame(f"its headers are larger than {MAX_HEAD} bytes")

    def eof_received(self) -> None:
        answer = self._answer
        if answer is not None and answer.head.lasts_until_close:
            answer.finish()
        self._lose("the server closed it", by_server=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc) if exc is not None and str(exc) else "the server closed it", by_server=True)

    # httptools.HttpResponseParser

    def on_message_begin(self) -> None:
        if self._answer is None or self._answer.whole:
            self._blame("it says more than it was asked")

    def on_status(self, status: bytes) -> None:
        self._reason += status

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        head = read_head(status, self._reason, self._fields)
        self._reason, self._fields = b"", []
        # RFC 9110, section 15.2: a client must take any number of interim responses before the final one.
        self._interim = status < 200
        if self._fault is None and self._answer is not None and not self._interim:
            self._since_body = 0
            self._answer.begin(head)

    def on_body(self, body: bytes) -> None:
        self._since_body = 0
        if self._fault is None and self._answer is not None:
            self._answer.feed(body)

    def on_message_complete(self) -> None:
        self._fields = []
        if self._fault is not None or self._answer is None or self._interim:
            return
        self._since_body = 0
        self._answer.finish()
        if not self._parser.should_keep_alive():
            self.close()

    def _blame(self, fault: str) -> None:
        """The first fault is the one that is told: what comes after may follow from it."""
        self._fault = self._fault or fault

    def _free(self) -> None:
        self._answer = None
        if self._paused:
            self.resume()
        if self._last_moment is not None:
            self._forget_last_moment(self._last_moment)
        self._when_free(self)

    def _lose(self, how: str, *, by_server: bool = False) -> None:
        if self._lost:
            return
        self._lost = True
        if self._last_moment is not None:
            self._forget_last_moment(self._last_moment)
        if self._answer is not None and not self._answer.whole:
            self._answer.fail(Broken(how, silent=not self._heard))
        self._when_lost(self, by_server and self._answer is not None and not self._heard)

    def _forget_last_moment(self, moment: asyncio.TimerHandle) -> None:
        moment.cancel()
        self._last_moment = None
