"""Parse a document in the format that its file's name says.

Interprets no key and expands nothing. Refuses duplicate keys, tags that construct objects, and documents that expand
(by anchors) to more than MAX_VALUES values or MAX_DEPTH levels.
"""

from __future__ import annotations

from pathlib import PurePath

from mcproxy.configuration.documents.json_reader import JsonReader
from mcproxy.configuration.documents.tree import Node


def parse_document(text: str, file: str) -> Node:
    """The tree of `text`, in the format of the suffix of `file`; YAML for an unknown suffix.

    Raises ConfigurationError.
    """
    # The readers of TOML and YAML take longer to import than a document in another format takes to read.
    match PurePath(file).suffix.lower():
        case ".json" | ".jsonc":
            return JsonReader(text, file).document()
        case ".toml":
            from mcproxy.configuration.documents.toml_reader import read_toml

            return read_toml(text, file)
        case _:
            from mcproxy.configuration.documents.yaml_reader import read_yaml

            return read_yaml(text, file)
