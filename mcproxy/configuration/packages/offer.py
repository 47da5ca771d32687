"""What a publisher's file offers to run or to connect to, with places for the values that the user gives.

Takes nothing from the environment: a place is filled with a value of the user's, with a variable that the user named,
or with the publisher's default. Every other text of the file is literal, whatever it looks like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from mcproxy.configuration.hosts.references import before_reference, escaped, reference


class Input(msgspec.Struct, frozen=True):
    """A value that the publisher's file asks for."""

    name: str
    description: str = ""
    secret: bool = False
    required: bool = False
    default: tuple[str, ...] | None = None
    choices: tuple[str, ...] = ()


class Slot(msgspec.Struct, frozen=True):
    """The place of an input's value in a text."""

    name: str


class Variable(msgspec.Struct, frozen=True):
    """An environment variable that stands for a value."""

    name: str


Value = str | Variable
Values = Mapping[str, Sequence[Value]]
"""The values of inputs, by name; most have one. An input without a value has no entry."""
Text = tuple[str | Slot, ...]


class Words(msgspec.Struct, frozen=True):
    """Words of a command that are left out together if an input that they need has no value."""

    words: tuple[Text, ...]
    needs: frozenset[str] = frozenset()


class Bundle(msgspec.Struct, frozen=True):
    """A bundle's file, and the folder that it would be unpacked into."""

    path: Path
    target: Path
    digest: str


class Offer(msgspec.Struct, frozen=True):
    """One server: a command with its environment, or a URL with its headers."""

    inputs: tuple[Input, ...]
    command: tuple[Words, ...] = ()
    """The program first."""
    env: Mapping[str, Text] = msgspec.field(default_factory=dict)
    url: Text = ()
    type: str = ""
    headers: Mapping[str, Text] = msgspec.field(default_factory=dict)
    bundle: Bundle | None = None

    def entry(self, values: Values) -> dict[str, object]:
        """The entry of `mcpServers` with these values; what needs another value is left out."""
        if self.url:
            found: dict[str, object] = {"url": _one(self.url, values) or "", "type": self.type}
            return {**found, **_mapping("headers", self.headers, values)}
        words = [word for group in self.command for word in _words(group, values)]
        return {"command": words[0], "args": words[1:], **_mapping("env", self.env, values)}


def slots(texts: Iterable[Text]) -> frozenset[str]:
    """The names of the inputs in some texts."""
    return frozenset(part.name for text in texts for part in text if isinstance(part, Slot))


def _words(group: Words, values: Values) -> list[str]:
    if not (group.needs | slots(group.words)) <= values.keys():
        return []
    return [word for text in group.words for word in _filled(text, values)]


def _mapping(key: str, texts: Mapping[str, Text], values: Values) -> dict[str, object]:
    filled = {name: _one(text, values) for name, text in texts.items()}
    kept = {name: text for name, text in filled.items() if text is not None}
    return {key: kept} if kept else {}


def _one(text: Text, values: Values) -> str | None:
    if not slots([text]) <= values.keys():
        return None
    given = {name: [_joined(value)] if len(value) > 1 else value for name, value in values.items()}
    return _filled(text, given)[0]


def _joined(values: Sequence[Value]) -> str:
    return ",".join(value for value in values if isinstance(value, str))


def _filled(text: Text, values: Values) -> list[str]:
    """The text in the syntax of our configuration; a place that is alone makes one word of each of its values."""
    match text:
        case (Slot(name=name),):
            return [_written([value]) for value in values[name]]
        case _:
            parts: list[Value] = []
            for part in text:
                parts += values[part.name] if isinstance(part, Slot) else [part]
            return [_written(parts)]


def _written(parts: Iterable[Value]) -> str:
    # Literal parts are joined before they are escaped: `$` and `{X}` would make a reference.
    written, plain = "", ""
    for part in parts:
        if isinstance(part, str):
            plain += part
        else:
            written, plain = written + before_reference(plain) + reference(part.name), ""
    return written + escaped(plain)
