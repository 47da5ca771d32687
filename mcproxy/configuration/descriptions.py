"""Read the descriptions of settings from the source: the string below each key of a section.

Read from the source only where they are shown, as in the JSON Schema: at each start they would cost a tenth of it.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from mcproxy.settings import Section


def key_descriptions(section: type[Section]) -> Mapping[str, str]:
    """The text below each key of a section, including those of the sections that it extends."""
    texts: dict[str, str] = {}
    for extended in reversed(section.__mro__[: section.__mro__.index(Section)]):
        definition = ast.parse(inspect.getsource(extended)).body[0]
        assert isinstance(definition, ast.ClassDef)
        texts |= _texts(definition.body)
    return texts


def _texts(lines: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for key, text in pairwise(lines):
        match key, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(words))),
            ):
                yield name, inspect.cleandoc(words)
