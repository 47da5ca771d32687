"""Bodies that a server compresses though it was asked not to (RFC 9110, section 8.4): decoded piece by piece.

What is decoded is bounded by whoever reads it, never by what arrived: a small body may unpack to a very large one.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import anyio
import anyio.lowlevel
import msgspec

from mcproxy.http.client.heads import ResponseHead
from mcproxy.http.client.response import ClientResponse, ConnectionBroken, ResponseTooLarge

PIECE: Final = 64 * 1024
"""Bytes that are decoded in a row."""
GRACE: Final = 1.0
"""Seconds for which more is waited for once a body is complete by its coding, but not by its `Content-Length`."""
MAX_CODINGS: Final = 3
"""Codings of one body, one within the other."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZLIB, _RAW = zlib.MAX_WBITS, -zlib.MAX_WBITS
_WBITS: Final = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": _ZLIB}


def codings(header: str) -> Sequence[str] | None:
    """The codings that a `Content-Encoding` lists, outermost first; None if one of them cannot be decoded."""
    listed = [name for part in header.split(",") if (name := part.strip()) and name != "identity"]
    known = len(listed) <= MAX_CODINGS and all(name in _WBITS for name in listed)
    return listed[::-1] if known else None


class _Decoder:
    """Takes off one coding. Raises zlib.error."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._unzip = zlib.decompressobj(_WBITS[coding])
        self._head: bytes | None = b""
        """The first bytes, until there are two of them: they say what it is."""
        self._is_plain = False

    @property
    def is_finished(self) -> bool:
        """Whether the coding says that this is the end."""
        return self._unzip.eof or self._is_plain

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._head is not None:
            self._head += data
            if len(self._head) < len(_GZIP_MAGIC):
                return
            data, self._head = self._head, None
            self._begin(data)
        if self._is_plain:
            yield data
            return
        while data:
            if self._unzip.eof:
                # RFC 1952, section 2.2: a file of gzip may have several members. Anything else behind one is no body.
                if not data.startswith(_GZIP_MAGIC):
                    return
                self._unzip = zlib.decompressobj(_WBITS[self._coding])
            yield self._unzip.decompress(data, PIECE)
            data = self._unzip.unconsumed_tail or self._unzip.unused_data

    def _begin(self, head: bytes) -> None:
        if self._coding == "deflate":
            # RFC 9110, section 8.4.1.2: "some non-conformant implementations send the 'deflate' compressed data without
            # the zlib wrapper", whose first two bytes are a multiple of 31.
            is_zlib = head[0] & 15 == zlib.DEFLATED and int.from_bytes(head[:2]) % 31 == 0
            self._unzip = zlib.decompressobj(_ZLIB if is_zlib else _RAW)
        else:
            self._is_plain = not head.startswith(_GZIP_MAGIC)


class DecodedBody:
    """Implements `responses.Body` for a body in codings."""

    def __init__(self, body: ClientResponse, listed: Sequence[str]) -> None:
        self._body = body
        self._names = ", ".join(listed)
        self._decoders = [_Decoder(coding) for coding in listed]
        self._pieces: AsyncIterator[bytes] | None = None
        self.head: ResponseHead = msgspec.structs.replace(body.head, content_encoding="")

    @property
    def is_complete(self) -> bool:
        return self._body.is_complete

    def release(self) -> None:
        self._body.release()

    def close(self) -> None:
        self._body.close()

    async def read(self, limit: int) -> bytes:
        """Raises ResponseTooLarge over `limit` decoded bytes, and ConnectionBroken."""
        pieces, size = [], 0
        async for piece in self:
            size += len(piece)
            if size > limit:
                self.close()
                raise ResponseTooLarge
            pieces.append(piece)
        return b"".join(pieces)

    def __aiter__(self) -> AsyncIterator[bytes]:
        if self._pieces is None:
            self._pieces = self._decoded()
        return self._pieces

    async def _decoded(self) -> AsyncIterator[bytes]:
        try:
            while (chunk := await self._chunk()) is not None:
                for piece in self._through(chunk, 0):
                    if piece:
                        yield piece
                        await anyio.lowlevel.checkpoint()
        except zlib.error as error:
            raise ConnectionBroken(f"its body is not what Content-Encoding says ({self._names}): {error}") from error
        if not all(decoder.is_finished for decoder in self._decoders):
            raise ConnectionBroken(f"its body did not come whole: it ends within its coding ({self._names})")

    async def _chunk(self) -> bytes | None:
        """What comes next; None at the end, or where nothing more can come."""
        is_finished = self._decoders[-1].is_finished
        with anyio.move_on_after(GRACE if is_finished else None) as scope:
            return await anext(aiter(self._body), None)
        assert scope.cancelled_caught
        return None

    def _through(self, data: bytes, at: int) -> Iterator[bytes]:
        if at == len(self._decoders):
            yield data
            return
        for piece in self._decoders[at].feed(data):
            yield from self._through(piece, at + 1)
