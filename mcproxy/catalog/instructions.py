"""Join the instructions of several servers within a budget, so that hosts which cut long texts lose no server.

A directory comes first, which names all servers, also those without instructions, within 512 characters. Then each
server gets a fair share of the rest; a share that one does not need goes to others. The full text is a resource of the
gateway's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

INSTRUCTIONS_URI: Final = "mcproxy://instructions"
DIRECTORY: Final = 512
"""Characters within which the directory ends: some hosts read no more."""
CUT: Final = " [...]"

_WHERE: Final = f"The resource {INSTRUCTIONS_URI} has all names and instructions in full."


class JoinedInstructions(NamedTuple):
    """The `instructions` of an endpoint (initialize, server/discover), joined from those of its servers."""

    shown: str | None
    whole: str | None = None
    """The full directory and all instructions, if the shown text is cut."""


def joined_instructions(
    servers: Sequence[str], told: Sequence[tuple[str, str]], most: int, before: str = ""
) -> JoinedInstructions:
    """What servers tell (`told`, by their names) in `most` characters; `servers` are all that the caller sees.

    `before` comes first, whole, and counts, also among the characters of the directory.
    """
    if not servers:
        return JoinedInstructions(before or None)
    start = f"{before}\n\n" if before else ""
    room = max(0, most - len(start))
    of_directory = min(room, DIRECTORY - len(start))
    names = _line(servers, len(servers))
    whole = "\n\n".join([names, *(_section(name, text) for name, text in told)])
    if len(names) <= of_directory and len(whole) <= room:
        return JoinedInstructions(start + whole)
    directory = _directory(servers, of_directory)
    headings = sum(len(_section(name, "")) + 2 for name, _ in told)
    lengths = shares([len(text) for _, text in told], room - len(directory) - headings)
    parts = [_section(name, _cut(text, length)) for (name, text), length in zip(told, lengths, strict=True) if length]
    return JoinedInstructions(start + "\n\n".join([directory, *parts]), whole)


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """How much of `room` each gets: all that it wants, or an equal part of the rest; what one leaves, others get.

    Counts what its caller counts: characters, or bytes. Without room each gets 0.
    """
    given = [0] * len(wanted)
    left = max(0, room)
    by_size = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for turn, index in enumerate(by_size):
        given[index] = min(wanted[index], left // (len(wanted) - turn))
        left -= given[index]
    return given


def _section(name: str, text: str) -> str:
    return f"## {name}\n\n{text}"


def _line(servers: Sequence[str], count: int) -> str:
    """Names the first `count` servers, and says how many more there are."""
    others = f" and {len(servers) - count} more" if count < len(servers) else ""
    return f"Servers behind this gateway: {', '.join(servers[:count])}{others}."


def _directory(servers: Sequence[str], most: int) -> str:
    """As many servers as `most` characters have room for, in order, and where all of them are."""
    for count in range(len(servers), 0, -1):
        line = f"{_line(servers, count)} {_WHERE}"
        if len(line) <= most:
            return line
    return f"{len(servers)} servers are behind this gateway. {_WHERE}"[:most]


def _cut(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    if length <= len(CUT):
        return CUT.strip()[:length]
    return text[: length - len(CUT)].rpartition(" ")[0].rstrip() + CUT
