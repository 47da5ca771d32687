"""Draw the clients and servers of the moment as SVG: clients on the left, servers on the right, the gateway between.

Needs no script. A line to a server is the thicker the more calls it took in the last five minutes, and dashed where the
server is not connected. The picture's `aria-label` counts; names and states stand in it as text, escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 640
ROW: Final = 40
"""Height of a row, in which a name and what is said of it stand below each other."""
MARGIN: Final = 26
SIDE: Final = 210
"""Width of the column of clients, and of that of servers."""
MAX_CLIENTS: Final = 12
MAX_SERVERS: Final = 30
MAX_NAME: Final = 26
"""Characters of a name that fit into its column."""
MAX_STROKE: Final = 8.0


@dataclass(frozen=True, slots=True)
class ClientNode:
    """Clients of one name; `count` are open sessions and streams."""

    name: str
    count: int


@dataclass(frozen=True, slots=True)
class ServerNode:
    """One server; `calls` are those of the last five minutes."""

    name: str
    state: str
    is_ready: bool
    calls: int


def graph(clients: Sequence[ClientNode], servers: Sequence[ServerNode]) -> str:
    """The picture: the busiest clients and servers, servers in trouble first; a line counts those left out."""
    shown_clients = sorted(clients, key=lambda client: -client.count)[:MAX_CLIENTS]
    shown_servers = sorted(servers, key=lambda server: (server.is_ready, -server.calls))[:MAX_SERVERS]
    rows = max(len(shown_clients) + (len(clients) > MAX_CLIENTS), len(shown_servers) + (len(servers) > MAX_SERVERS), 1)
    height = rows * ROW + 2 * MARGIN
    middle = height / 2
    parts = [_box(middle)]
    for index, client in enumerate(shown_clients):
        at = _place(index, len(clients), MAX_CLIENTS, middle)
        parts.append(_line(SIDE, at, WIDTH / 2 - 46, middle, _stroke(client.count), ""))
        parts.append(_label(SIDE - 8, at, client.name, f"{client.count} open", "end", ""))
    for index, server in enumerate(shown_servers):
        at = _place(index, len(servers), MAX_SERVERS, middle)
        lost = "" if server.is_ready else " lost"
        parts.append(_line(WIDTH / 2 + 46, middle, WIDTH - SIDE, at, _stroke(server.calls), lost))
        said = f"{server.state}, {server.calls} {'call' if server.calls == 1 else 'calls'}"
        parts.append(_label(WIDTH - SIDE + 8, at, server.name, said, "start", lost))
    parts += _left_out(len(clients), MAX_CLIENTS, SIDE - 8, "end", middle)
    parts += _left_out(len(servers), MAX_SERVERS, WIDTH - SIDE + 8, "start", middle)
    ready = sum(server.is_ready for server in servers)
    streams = sum(client.count for client in clients)
    label = f"{streams} open sessions and streams, {ready} of {len(servers)} servers ready"
    return f'<svg class="graph" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _place(index: int, count: int, most: int, middle: float) -> float:
    """The height of a row; the column stands around the middle."""
    rows = min(count, most) + (count > most)
    return middle + (index - (rows - 1) / 2) * ROW


def _stroke(calls: int) -> float:
    """The width of a line: it grows by one with each doubling."""
    return min(MAX_STROKE, 1 + math.log2(1 + max(0, calls)) / 2)


def _box(middle: float) -> str:
    corner = f'x="{WIDTH / 2 - 46:g}" y="{middle - 16:g}" width="92" height="32" rx="8"'
    return f'<rect {corner}/><text x="{WIDTH / 2:g}" y="{middle + 4:g}" text-anchor="middle">mcproxy</text>'


def _line(x: float, y: float, to_x: float, to_y: float, width: float, mark: str) -> str:
    bend = (x + to_x) / 2
    curve = f"M{x:g},{y:g}C{bend:g},{y:g} {bend:g},{to_y:g} {to_x:g},{to_y:g}"
    return f'<path class="link{mark}" d="{curve}" stroke-width="{width:.1f}"/>'


def _label(x: float, y: float, name: str, said: str, anchor: str, mark: str) -> str:
    shown = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
    return (
        f'<text x="{x:g}" y="{y - 1:g}" text-anchor="{anchor}">{escape(shown)}</text>'
        f'<text class="said{mark}" x="{x:g}" y="{y + 13:g}" text-anchor="{anchor}">{escape(said)}</text>'
    )


def _left_out(count: int, most: int, x: float, anchor: str, middle: float) -> list[str]:
    if count <= most:
        return []
    at = _place(most, count, most, middle)
    return [f'<text class="said" x="{x:g}" y="{at:g}" text-anchor="{anchor}">and {count - most} more</text>']
