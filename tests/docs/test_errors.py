"""Every error sentence of the package is on the page of errors, and the page has no others."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from mcproxy.call.errors import Reason
from mcproxy.call.upstreams import LinkFailure
from mcproxy.protocol import jsonrpc
from tests.docs.diagrams import ROOT
from tests.docs.error_sentences import sentences

PAGE = (ROOT / "docs/reference/errors.md").read_text()
QUOTED = re.compile(r"^\| (?:`` ?(.+?) ?``|`(.+?)`) \|", re.MULTILINE)
CODE = re.compile(r"^\| (-?\d+) \| `(\w+)` \|", re.MULTILINE)


def documented() -> list[str]:
    return [plain(double or single) for double, single in QUOTED.findall(PAGE)]


def plain(sentence: str) -> str:
    """As a table shows it: without marks for code."""
    return sentence.replace("`", "'").strip()


def test_every_error_sentence_is_documented_and_no_other() -> None:
    said = {plain(sentence) for sentence in sentences()}
    wanted = [f"add: {sentence}" for sentence in sorted(said - set(documented()))]
    gone = [f"take out: {sentence}" for sentence in sorted(set(documented()) - said)]
    assert "\n".join([*wanted, *gone]) == ""


def test_no_error_sentence_is_documented_twice() -> None:
    assert [sentence for sentence, times in Counter(documented()).items() if times > 1] == []


def test_every_error_code_is_documented() -> None:
    codes = {name: value for name, value in vars(jsonrpc).items() if name.isupper() and isinstance(value, int)}
    errors = {name: value for name, value in codes.items() if value < -32000 or value == jsonrpc.LIMIT_EXCEEDED}
    assert {name: int(code) for code, name in CODE.findall(PAGE)} == errors


def test_a_sentence_is_found_with_its_values_left_out(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "class McpError(Exception): ...\nclass Refusal(McpError): ...\n"
        "def f(name):\n    sentence = f'no {name!r} here'\n    raise McpError(1, sentence)\n"
        "def g(x):\n    raise Refusal(400, 2, 'it is so' if x else 'it is not so')\n"
        "def h():\n    raise KeyError('not an error of ours')\n    log('no error at all')\n"
    )
    assert sentences(tmp_path) == {
        "no … here": ["one.py"],
        "it is so": ["one.py"],
        "it is not so": ["one.py"],
    }


def test_a_sentence_that_a_check_of_the_configuration_yields_or_returns_is_found(tmp_path: Path) -> None:
    (tmp_path / "configuration").mkdir()
    (tmp_path / "configuration" / "one.py").write_text(
        "def checks(node):\n    yield node, 'needs a url'\n"
        "    sentence = 'is no {} at all'\n    yield node, sentence.format(1)\n"
        "def url_fault(text):\n    return 'should name a host' if text else None\n"
        "def title(text):\n    return 'no error at all'\n"
    )
    assert sentences(tmp_path).keys() == {"needs a url", "is no … at all", "should name a host"}


def first_cells(page: str, heading: str) -> set[str]:
    """The code in the first column of the table that has this line for a heading."""
    table = (ROOT / page).read_text().partition(heading)[2].partition("\n\n")[0]
    return {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split(" | ")[0])}


def test_every_reason_why_a_server_is_not_connected_is_explained() -> None:
    told = first_cells("docs/how-to/three-in-the-morning.md", "| why | means | look at |")
    assert told == {failure.value for failure in LinkFailure}


def test_every_outcome_of_a_call_is_explained() -> None:
    told = first_cells("docs/how-to/three-in-the-morning.md", "| outcome | whose fault | then |")
    assert told == {"ok", "input_required", "tool_error", *(reason.value for reason in Reason)}
