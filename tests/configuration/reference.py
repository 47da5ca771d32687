"""The comments of `config/reference.yaml`, from the settings' own documentation.

`python -m tests.configuration.reference` writes them anew, and leaves the values as they are.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard, get_args

from mcproxy.configuration.descriptions import key_descriptions
from mcproxy.configuration.schema import schema
from mcproxy.settings import Section, Settings, UpstreamSettings

FILE = Path(__file__).parents[2] / "config/reference.yaml"
WIDTH = 118
SERVER = ("mcpServers", "example")

_KEY = re.compile(r"(?P<indent> *)(?P<key>\w+):")


def comments() -> dict[tuple[str, ...], str]:
    """The documentation of each key, by its path in the reference."""
    server = {(*SERVER, *path): text for path, text in described(UpstreamSettings) if path != ("name",)}
    sections = dict(described(Settings))
    return {SERVER[:1]: schema()["properties"]["mcpServers"]["description"], **server, **sections}


def described(model: type[Section]) -> Iterator[tuple[tuple[str, ...], str]]:
    texts = key_descriptions(model)
    for key, field in model.model_fields.items():
        yield (key,), texts.get(key, "")
        inner = next((kind for kind in (field.annotation, *get_args(field.annotation)) if is_section(kind)), None)
        if inner is not None:
            yield from (((key, *path), text) for path, text in described(inner))


def is_section(kind: object) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)


def rendered(text: str) -> str:
    """The reference with each key's comment as the settings have it."""
    known, lines = comments(), list[str]()
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        if line.startswith(" ") and line.lstrip().startswith("#"):
            continue
        match = _KEY.match(line)
        if match is not None:
            indent = len(match["indent"])
            path = [*((depth, key) for depth, key in path if depth < indent), (indent, match["key"])]
            while not indent and lines and lines[-1].startswith("#"):
                lines.pop()
            lines += comment(known.get(tuple(key for _, key in path), ""), indent)
        lines.append(line)
    return "\n".join(lines) + "\n"


def comment(text: str, indent: int) -> list[str]:
    prefix = f"{' ' * indent}# "
    # A key and its value are kept together by a no-break space.
    return [
        line.replace(":\xa0", ": ")
        for paragraph in text.replace(": ", ":\xa0").split("\n\n")
        for line in textwrap.wrap(
            paragraph,
            WIDTH,
            initial_indent=prefix,
            subsequent_indent=prefix,
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


if __name__ == "__main__":
    FILE.write_text(rendered(FILE.read_text()))
