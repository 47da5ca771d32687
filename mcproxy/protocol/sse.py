"""Server-sent events to and from bytes (WHATWG HTML, section 9.2). Pure: chunks in, events out."""

from __future__ import annotations

from typing import Final

import msgspec

from mcproxy.protocol.pieces import Pieces

KEEP_ALIVE: Final = b":\n\n"
_LINE_FEED, _CARRIAGE_RETURN = b"\n\r"  # as numbers, which is what bytes are searched for at once


class Event(msgspec.Struct, frozen=True):
    """One dispatched event. `id` is the last event id in force, `retry` the milliseconds asked for in this event."""

    data: bytes
    """UTF-8."""
    event: str = "message"
    id: str | None = None
    retry: int | None = None


class EventTooLarge(Exception):
    """An event is larger than the decoder's limit in bytes."""


class EventDecoder:
    """Takes chunks split anywhere. An event over `limit` bytes raises EventTooLarge; unknown fields are ignored."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending = Pieces()
        """What has come of a line that has not ended."""
        self._after_cr = False
        self._first = True
        self._data = Pieces()
        self._has_data = False
        self._size = 0
        """Bytes of the lines of data, their names included but in the first."""
        self._event = b""
        self._id: str | None = None
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes, in order."""
        events: list[Event] = []
        chunk = self._with_line_feeds(chunk)
        if chunk and _LINE_FEED not in chunk:  # a part of a long line: to find that out is all that it costs
            self._pend(chunk)
            return events
        if not (self._pending.size or self._has_data or self._event or self._retry is not None):
            *blocks, chunk = chunk.split(b"\n\n")
            for block in blocks:
                data = _alone(block)
                if data is None:
                    self._take_lines(block + b"\n\n", events)
                else:
                    self._first = False
                    self._check(len(data) + 1)
                    events.append(Event(_as_utf8(data), id=self._id))
        if chunk:
            self._take_lines(chunk, events)
        return events

    def end(self) -> Event | None:
        """The event that the end of the stream cuts off, if it has data: its blank line is missing, or more."""
        return next((event for event in self.feed(b"\n\n") if event.data), None)

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        """`chunk` as if its lines ended with nothing else."""
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if _CARRIAGE_RETURN in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _take_lines(self, text: bytes, events: list[Event]) -> None:
        for line in self._lines(text):
            if line:
                self._take(line)
            elif self._has_data or self._retry is not None:
                events.append(self._dispatched())
            else:
                self._event = b""

    def _lines(self, text: bytes) -> list[bytes]:
        """The lines that `text` ends."""
        lines = text.split(b"\n")
        if self._pending.size:
            self._pend(lines[0])
            if len(lines) == 1:
                return []
            lines[0] = self._pending.taken()
        last = lines.pop()
        if last:
            self._pend(last)
        if self._first and lines:
            self._first = False
            lines[0] = lines[0].removeprefix(b"\xef\xbb\xbf")
        return lines

    def _pend(self, piece: bytes) -> None:
        """Keeps a piece of a line that has not ended."""
        self._pending.add(piece)
        self._check(self._pending.size)

    def _take(self, line: bytes) -> None:
        if line[:6] == b"data: ":  # as most are; a long one is copied once
            self._take_data(line[6:], len(line))
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._take_data(value, len(line))
            case b"event":
                self._event = value
            case b"id" if b"\0" not in value:
                self._id = value.decode(errors="replace")
            case b"retry" if value.isdigit() and len(value) <= 9:
                self._retry = int(value)
            case _:
                pass

    def _take_data(self, value: bytes, size: int) -> None:
        """Takes the value of a line of so many bytes, by which an event of many short lines is counted."""
        self._size += (size if self._has_data else len(value)) + 1
        self._check(self._size)
        if self._has_data:
            self._data.add(b"\n")
        self._data.add(value)
        self._has_data = True

    def _dispatched(self) -> Event:
        data, name = _as_utf8(self._data.taken()), self._event
        event = "message" if name in (b"message", b"") else name.decode("utf-8", "replace")
        retry, self._retry = self._retry, None
        self._has_data, self._event, self._size = False, b"", 0
        return Event(data, event, self._id, retry)

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise EventTooLarge(f"an event is larger than {self._limit} bytes")


def _as_utf8(data: bytes) -> bytes:
    return data if data.isascii() else data.decode("utf-8", "replace").encode()


def _alone(block: bytes) -> bytes | None:
    """The data of an event that is nothing but one line of it, and at most called what it is called anyway."""
    if block[:21] == b"event: message\ndata: ":
        data = block[21:]
    elif block[:6] == b"data: ":
        data = block[6:]
    else:
        return None
    return None if _LINE_FEED in data else data


def encode_event(data: bytes, *, event: str | None = None, id: str | None = None, retry: int | None = None) -> bytes:
    """One event. `data` must be one line; `event` and `id` are ours, never a peer's (a line break is refused)."""
    if _LINE_FEED in data or _CARRIAGE_RETURN in data:
        raise ValueError("a line break in the data of an event")
    if event is None and id is None and retry is None:
        return b"data: %b\n\n" % data
    fields = ""
    if event is not None:
        fields = f"event: {event}\n"
    if id is not None:
        fields += f"id: {id}\n"
    if retry is not None:
        fields += f"retry: {retry}\n"
    if fields.count("\n") != (event is not None) + (id is not None) + (retry is not None) or "\r" in fields:
        raise ValueError(f"a line break in a field of an event: {fields!r}")
    return b"%bdata: %b\n\n" % (fields.encode(), data)
