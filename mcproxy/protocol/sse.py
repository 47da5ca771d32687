"""Server-sent events to and from bytes (WHATWG HTML, section 9.2). Pure: chunks in, events out."""

from __future__ import annotations

from typing import Final

import msgspec

KEEP_ALIVE: Final = b":\n\n"


class Event(msgspec.Struct, frozen=True):
    """One dispatched event. `id` is the last event id in force, `retry` the milliseconds asked for in this event."""

    data: str
    event: str = "message"
    id: str | None = None
    retry: int | None = None


class EventTooLarge(Exception):
    """An event grew over the decoder's limit, in bytes."""


class EventDecoder:
    """Feeds on chunks cut anywhere. An event over `limit` bytes raises EventTooLarge; what is unknown is ignored."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._after_cr = False
        self._first = True
        self._data: list[bytes] = []
        self._size = 0
        self._event = ""
        self._id: str | None = None
        self._retry: int | None = None

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes, in order."""
        events: list[Event] = []
        for line in self._lines(chunk):
            event = self._take(line)
            if event is not None:
                events.append(event)
        return events

    def _lines(self, chunk: bytes) -> list[bytes]:
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        head, *rest = chunk.split(b"\n")
        self._pending.append(head)
        self._pending_size += len(head)
        self._check(self._pending_size)
        if not rest:
            return []
        lines = [b"".join(self._pending), *rest[:-1]]
        self._pending = [rest[-1]]
        self._pending_size = len(rest[-1])
        self._check(self._pending_size)
        return lines

    def _take(self, line: bytes) -> Event | None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._size += len(value) + 1
                self._check(self._size)
                self._data.append(value)
            case b"event":
                self._event = value.decode(errors="replace")
            case b"id" if b"\0" not in value:
                self._id = value.decode(errors="replace")
            case b"retry" if value.isdigit() and len(value) <= 9:
                self._retry = int(value)
            case _:
                pass
        return None

    def _dispatch(self) -> Event | None:
        data, event, retry = self._data, self._event, self._retry
        if not data and retry is None:
            self._event = ""
            return None
        self._data, self._event, self._retry, self._size = [], "", None, 0
        return Event(b"\n".join(data).decode("utf-8", "replace"), event or "message", self._id, retry)

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise EventTooLarge(f"an event is larger than {self._limit} bytes")


def encode_event(data: bytes, *, event: str | None = None, id: str | None = None, retry: int | None = None) -> bytes:
    """One event. `data` must be one line; `event` and `id` are ours, never a peer's (a line break is refused)."""
    # `in` takes several times as long: it first tries whether it is given a number.
    if data.find(b"\n") >= 0 or data.find(b"\r") >= 0:
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
