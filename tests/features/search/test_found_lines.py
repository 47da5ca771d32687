"""The line that a search tells of a tool, and how many fit."""

from __future__ import annotations

import json

from mcproxy.catalog.views.view import Shown
from mcproxy.features.search.found_lines import FoundLines, fitting
from mcproxy.protocol.jsonrpc import raw


def test_a_line_is_made_once_and_has_its_text_as_json() -> None:
    entry = raw({"name": "log", "description": 'Shows "commits" \\ größer.', "inputSchema": {"type": "object"}})
    lines = FoundLines([Shown("git__log", "git", "log", entry)])
    line = lines[0]
    text = 'git__log() - Shows "commits" \\ größer. [call_destructive]'
    assert json.loads(b'"%b"' % line.json) == text
    assert (line.name, line.size) == ("git__log", len(text.encode()))
    assert lines[0] is line


def test_lines_fit_as_far_as_their_bytes_do_and_one_in_any_case() -> None:
    assert fitting([9, 9, 9], 30) == 3
    assert fitting([9, 9, 9], 29) == 2
    assert fitting([9, 9, 9], 20) == 2
    assert fitting([9, 9, 9], 1) == 1
    assert fitting([9], 1) == 1
    assert fitting([], 1) == 0
