"""The person at the terminal, as a client of the gateway."""

from __future__ import annotations

import io
from collections.abc import Iterator

import anyio
import msgspec
import pytest
from rich.console import Console

from mcproxy.call.clients import InputRequest
from mcproxy.call.errors import McpError
from mcproxy.cli.terminal import Prompt, Terminal, printable, printable_line
from mcproxy.protocol.jsonrpc import Params, raw
from mcproxy.protocol.methods import LOG_MESSAGE, PROGRESS
from tests.timeouts import GUARD

pytestmark = pytest.mark.anyio


def quiet(*, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=200)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def answering(*lines: str) -> Prompt:
    """A person who types `lines`, then closes the terminal."""
    left: Iterator[str] = iter(lines)

    def ask(_prompt: str) -> str:
        line = next(left, None)
        if line is None:
            raise EOFError
        return line + "\n"

    return ask


def elicitation(properties: dict[str, object]) -> InputRequest:
    schema = {"type": "object", "properties": properties}
    return InputRequest("elicitation/create", {"message": raw("Who?"), "requestedSchema": raw(schema)})


async def asked(request: InputRequest, *lines: str) -> object:
    with anyio.fail_after(GUARD):
        return msgspec.json.decode(await Terminal(quiet(), answering(*lines)).ask(request))


async def test_a_form_is_asked_field_by_field() -> None:
    request = elicitation(
        {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "member": {"type": "boolean"},
            "color": {"type": "string", "oneOf": [{"const": "#f00", "title": "Red"}]},
            "left": {"type": "string"},
            "usual": {"type": "number", "default": 1.5},
        }
    )
    assert await asked(request, "Ada", "not a number", "36", "y", "#f00", "", "") == {
        "action": "accept",
        "content": {"name": "Ada", "age": 36, "member": True, "color": "#f00", "usual": 1.5},
    }


async def test_a_form_can_be_declined_and_cancelled() -> None:
    request = elicitation({"name": {"type": "string"}})
    assert await asked(request, "!") == {"action": "decline"}
    assert await asked(request) == {"action": "cancel"}


async def test_a_page_is_opened_by_the_person_alone() -> None:
    request = InputRequest(
        "elicitation/create", {"mode": raw("url"), "url": raw("https://h.example/x"), "message": raw("m")}
    )
    console = quiet()
    terminal = Terminal(console, answering("no"))
    assert msgspec.json.decode(await terminal.ask(request)) == {"action": "decline"}
    assert "page of h.example" in written(console)


async def test_without_a_terminal_nothing_is_declared_and_all_is_refused() -> None:
    terminal = Terminal(quiet(), None)
    assert terminal.capabilities == {}
    with pytest.raises(McpError):
        await terminal.ask(elicitation({}))


async def test_what_was_not_declared_is_refused() -> None:
    with pytest.raises(McpError):
        await Terminal(quiet(), answering()).ask(InputRequest("sampling/createMessage", {}))


def notified(method: str, params: Params, *, terminal: bool = False) -> str:
    console = quiet(terminal=terminal)
    client = Terminal(console, None)
    client.notify(method, params)
    client.close()
    return written(console)


async def test_progress_is_a_line_where_there_is_no_terminal() -> None:
    params = {"progress": raw(1), "total": raw(3), "message": raw("halfway")}
    assert notified(PROGRESS, params) == "progress: 1 of 3 halfway\n"


async def test_progress_is_a_bar_on_a_terminal() -> None:
    assert "halfway" in notified(PROGRESS, {"progress": raw(1), "message": raw("halfway")}, terminal=True)


async def test_a_servers_words_cannot_take_the_terminal_over() -> None:
    said = notified(LOG_MESSAGE, {"level": raw("error"), "data": raw("\x1b[2J[bold]gone[/bold]\r")}, terminal=True)
    assert said == "error: \ufffd[2J[bold]gone[/bold]\ufffd\n"
    assert printable("a\x9b\u202eb\n\tc\u2028") == "a\ufffd\ufffdb\n\tc\ufffd"
    assert printable_line("a\x9bb\n\tc") == "a\ufffdb\ufffd\tc"


async def test_what_is_no_news_for_a_person_is_not_shown() -> None:
    assert notified("notifications/tools/list_changed", {}) == ""
