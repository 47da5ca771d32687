"""Resumable event streams of one session: events are numbered, kept for `Last-Event-ID`, and sent to the connection.

A stream outlives its connections; the newest connection reads it (transports, Resumability and Redelivery). What is
kept is bounded for each session, for each caller, and in all. Opens no connection and writes to none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from mcproxy.call.identity import Principal, Rights
from mcproxy.downstream.io.send_buffer import SendBuffer
from mcproxy.protocol.jsonrpc import Message, Notification, encode
from mcproxy.settings import LimitSettings

RETRY: Final = 1000
"""Milliseconds after which a client should resume a stream."""

FEW: Final = 16
"""Open streams of answers up to which finished ones are not looked for."""

_LISTENING, _ANSWERING = "g", "p"

COUNTED: Final = 16 * 1024
"""Bytes by which what a session keeps grows between two times that its pools count it: most sessions keep less."""


class UnknownEvent(Exception):
    """A `Last-Event-ID` from which no stream can be resumed: too old, or never issued."""


class ReplayPool:
    """Sessions that keep so many bytes together. `most` tells the bound that is in force."""

    __slots__ = ("_most", "_replays", "size")

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._replays: OrderedDict[Replay, None] = OrderedDict()
        """Those that keep anything; the one that kept an event longest ago comes first."""
        self.size = 0
        """Bytes that they keep."""

    def count(self, replay: Replay, before: int, after: int) -> None:
        """Takes note that a session keeps `after` bytes, and no longer `before`."""
        self.size += after - before
        if not after:
            self._replays.pop(replay, None)
        elif after > before:
            self._replays[replay] = None
            self._replays.move_to_end(replay)

    def make_room(self) -> None:
        """Has events dropped until the rest is within the bound."""
        most = self._most()
        while self.size > most:
            next(iter(self._replays)).drop_oldest()


class ReplayPools:
    """The pool of all sessions, and one for each caller that has any; `limits` tells those in force."""

    def __init__(self, limits: Callable[[], LimitSettings]) -> None:
        self._limits = limits
        self._all = ReplayPool(lambda: limits().replay_bytes_total)
        self._of_account: dict[str, ReplayPool] = {}

    def of(self, principal: Principal) -> tuple[ReplayPool, ...]:
        """The pools of a session of `principal`. Callers that cannot be told apart share that of all alone."""
        if principal.is_several:
            return (self._all,)
        own = self._of_account.get(principal.account)
        if own is None:
            own = ReplayPool(lambda: self._limits().replay_bytes_per_principal)
            self._of_account[principal.account] = own
        return own, self._all

    def forget(self, account: str) -> None:
        """Keeps nothing for a caller that has no session any more."""
        self._of_account.pop(account, None)


class Replay:
    """The last events of all streams of a session, within its limits and its `pools`; the oldest are dropped first."""

    __slots__ = ("_counted", "_is_closed", "_kept", "_most", "_most_bytes", "_pools", "_size")

    def __init__(self, limits: LimitSettings, pools: Sequence[ReplayPool]) -> None:
        self._most = limits.replay_events
        self._most_bytes = limits.replay_bytes
        # No deque, which takes 700 bytes: every client has one of these, mostly empty.
        self._kept: list[bytes] = []
        """Encoded events; the `id` line of each names its stream and its number there."""
        self._size = 0
        self._counted = 0
        """The bytes that the pools know of."""
        self._pools = pools
        self._is_closed = False

    def keep(self, frame: bytes) -> None:
        """Adds an encoded event; over the limits the oldest of any stream are dropped."""
        if self._is_closed:
            return
        kept = self._kept
        kept.append(frame)
        self._size += len(frame)
        while len(kept) > self._most or self._size > self._most_bytes:
            self._size -= len(kept.pop(0))
        if not self._counted <= self._size < self._counted + COUNTED:
            self._count()
            for pool in self._pools:
                pool.make_room()

    def drop_oldest(self) -> None:
        """Drops one event, of those that the pools have counted."""
        self._size -= len(self._kept.pop(0))
        self._count()

    def drop(self, stream: str) -> None:
        """Drops the events of one stream."""
        of_stream = _beginning(stream)
        self._kept = [frame for frame in self._kept if not frame.startswith(of_stream)]
        self._size = sum(map(len, self._kept))
        self._count()

    def close(self) -> None:
        """Keeps nothing from now on: the session has ended."""
        self._is_closed = True
        self._kept.clear()
        self._size = 0
        self._count()

    def _count(self) -> None:
        for pool in self._pools:
            pool.count(self, self._counted, self._size)
        self._counted = self._size

    def after(self, stream: str, number: int) -> list[bytes]:
        """A stream's kept events after number `number`, oldest first."""
        of_stream = _beginning(stream)
        return [frame for frame in self._kept if frame.startswith(of_stream) and _place(frame)[1] > number]

    def streams(self) -> frozenset[str]:
        """The names of the streams that have kept events."""
        return frozenset(_place(frame)[0] for frame in self._kept)


def _beginning(stream: str) -> bytes:
    return f"id: {stream}-".encode()


def _place(frame: bytes) -> tuple[str, int]:
    """The stream of an event, and the event's number on it."""
    id = frame[len("id: ") : frame.index(b"\n")].decode()
    stream, _, number = id.rpartition("-")
    return stream, int(number)


class ReplayStream:
    """One event stream. `name` is unique in the session's whole life."""

    __slots__ = ("_beginning", "_number", "_replay", "_send_buffer", "finished", "name", "rights")

    def __init__(self, name: str, replay: Replay, rights: Rights | None = None) -> None:
        self.name = name
        self.rights = rights
        """The rights of the request that it answers; None if it answers none."""
        self.finished = False
        self._replay = replay
        self._beginning = _beginning(name)
        self._number = 0
        self._send_buffer: SendBuffer | None = None

    @property
    def connected(self) -> bool:
        return self._send_buffer is not None and not self._send_buffer.closed

    def send(self, message: Message) -> None:
        self.put(encode(message), droppable=isinstance(message, Notification))

    def put(self, message: bytes, *, droppable: bool) -> None:
        """Sends an encoded message of one line: the same bytes as `encode_event`, in a fraction of its time."""
        self._number += 1
        frame = b"%b%d\ndata: %b\n\n" % (self._beginning, self._number, message)
        self._replay.keep(frame)
        if self._send_buffer is not None:
            self._send_buffer.put(frame, droppable=droppable)

    def attach(self, send_buffer: SendBuffer, *, after: int | None = None, primed: bool = False) -> None:
        """Moves the stream to a new connection, on which the events after number `after` are sent first.

        A `primed` stream begins with an event without data, from whose id it can be resumed (2025-11-25).
        """
        self.close()
        self._send_buffer = send_buffer
        if primed:
            send_buffer.restore([b"%b%d\nretry: %d\ndata: \n\n" % (self._beginning, self._number, RETRY)])
        if after is not None:
            send_buffer.restore(self._replay.after(self.name, after))
        if self.finished:
            send_buffer.close()

    def detach(self, send_buffer: SendBuffer) -> None:
        """Notes that a connection is gone, unless another has replaced it."""
        if self._send_buffer is send_buffer:
            self._send_buffer = None

    def finish(self) -> None:
        """Ends the stream; its connection ends once every event is written."""
        self.finished = True
        self.close()

    def notify_writer(self) -> None:
        if self._send_buffer is not None:
            self._send_buffer.on_ready()

    def close(self) -> None:
        """Ends the connection, if any; the stream can be resumed."""
        if self._send_buffer is not None:
            self._send_buffer.close()


class ReplayStreams:
    """All event streams of a session: the listening one (GET), and one for each POST that is answered by a stream."""

    __slots__ = ("_answering", "_check_at", "_new_name", "_replay", "listening")

    def __init__(self, limits: LimitSettings, new_name: Callable[[], str], pools: Sequence[ReplayPool] = ()) -> None:
        self._replay = Replay(limits, pools)
        self._new_name = new_name
        self.listening = ReplayStream(_LISTENING + new_name(), self._replay)
        self._answering: dict[str, ReplayStream] = {}
        self._check_at = FEW

    def open(self, rights: Rights) -> ReplayStream:
        """A stream for the answer to one POST with these rights."""
        if len(self._answering) >= self._check_at:
            self._forget_finished()
            # Not each time: this looks through every kept event.
            self._check_at = 2 * len(self._answering) + FEW
        stream = ReplayStream(_ANSWERING + self._new_name(), self._replay, rights)
        self._answering[stream.name] = stream
        return stream

    def forget_listening(self) -> None:
        """Lets nothing be sent again that was sent on the listening stream so far. Its connection stays."""
        self._replay.drop(self.listening.name)

    def resume(self, last_event_id: str, rights: Rights) -> tuple[ReplayStream, int | None]:
        """The stream of that event, and the event's number on it, for a request with these rights.

        Raises UnknownEvent.
        """
        name, _, number = last_event_id.rpartition("-")
        if not (number.isascii() and number.isdigit() and len(number) < 10):
            raise UnknownEvent(last_event_id)
        if name == self.listening.name:
            return self.listening, int(number)
        if name.startswith(_LISTENING):
            # An event from before the gateway restarted: missed events are lost, new ones are sent.
            return self.listening, None
        stream = self._answering.get(name)
        if stream is None or stream.rights is None or not rights.cover(stream.rights):
            raise UnknownEvent(last_event_id)
        if stream.finished and not self._replay.after(name, int(number)):
            raise UnknownEvent(last_event_id)
        return stream, int(number)

    def close(self) -> None:
        """Ends all streams; none can be resumed."""
        for stream in (self.listening, *self._answering.values()):
            stream.finish()
        self._replay.close()

    def _forget_finished(self) -> None:
        kept = self._replay.streams()
        self._answering = {
            name: stream for name, stream in self._answering.items() if not stream.finished or name in kept
        }
